{
  description = "A DGX Spark with NixOS that serves GLM-5.3-Flash";

  # OWNER is whoever publishes the repository that you took this template from.
  inputs.glm53-exl3.url = "github:OWNER/glm53-exl3";

  outputs =
    { glm53-exl3, ... }:
    {
      nixosConfigurations.spark = glm53-exl3.inputs.nixpkgs.lib.nixosSystem {
        system = "aarch64-linux";
        modules = [
          glm53-exl3.nixosModules.default
          ./configuration.nix
          # ./hardware-configuration.nix
        ];
      };
    };
}
