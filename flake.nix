{
  # Only the door: what it opens stands in nix/. Inputs are made from nix/pins.json by tools/flake/inputs.py.
  description = "Serve GLM-5.3-Flash from EXL3 weights with vLLM on one NVIDIA DGX Spark";

  inputs = {
    nixpkgs.url = "github:NixOS/nixpkgs/ec1a11210589d294f0ac99d3290a27e6c73dfa1d";
    vllm-src.url = "github:ZJY0516/vllm/878631b6079d2cf9fb80830ef9cb41b43aded098";
    vllm-src.flake = false;
    exllamav3-src.url = "github:turboderp-org/exllamav3/17bc3923259ffd48aab742edd261a0ca45d55459";
    exllamav3-src.flake = false;
  };

  outputs =
    {
      self,
      nixpkgs,
      vllm-src,
      exllamav3-src,
    }:
    import ./nix/outputs.nix {
      inherit self nixpkgs;
      inputs = { inherit vllm-src exllamav3-src; };
    };
}
