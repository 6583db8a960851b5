# Configurations behind the goldens, as users write them.
{
  # The least that serves a model.
  minimal = {
    services.glm53-exl3 = {
      enable = true;
      instances.k2 = {
        runtime = "upstream";
        pack = "/srv/models/GLM-5.3-Flash-EXL3-K2";
      };
    };
  };

  # The demo pack on a CPU, which tests really start.
  demo = {
    services.glm53-exl3 = {
      enable = true;
      instances.demo = {
        runtime = "upstream";
        gpu = false;
        pack = "/srv/models/demo";
        settings.profile = "demo";
      };
    };
  };

  # Everything that can be set.
  full = {
    services.glm53-exl3 = {
      enable = true;
      instances.full = {
        runtime = "fork";
        # A folder below ProtectHome, with everything that systemd might read as syntax.
        pack = "/home/ada/models/100% \"K2\": $HOME\\n";
        draft = "/home/ada/models/draft";
        apiKeyFile = "/run/secrets/api key 100%";
        tokenFile = "/run/secrets/hub-token";
        openFirewall = true;
        supplementaryGroups = [ "models" ];
        settings = {
          profile = "long";
          context = 32768;
          sequences = 2;
          speculation = "dflash2";
          speculative-tokens = 3;
          draft-quantization = "fp8";
          capture-sizes = [
            1
            2
            4
            8
          ];
          kv-dtype = "fp8";
          kv-cache-bytes = 4294967296;
          memory-plan = true;
          floor = 6.5;
          prefix-caching = false;
          batched-tokens = 1024;
          enforce-eager = false;
          kernel = "exllamav3";
          expert-parallel = false;
          images = 0;
          videos = 0;
          host = "0.0.0.0";
          port = 8100;
          served-name = "glm \"quoted\"";
          chat-template = "/etc/glm53-exl3/template.jinja";
          tool-call-parser = "";
          reasoning-parser = "glm45";
          load-format = "safetensors";
          page-cache = "drop";
          preflight = true;
          canary = false;
          force = true;
          watchdog = 900;
          limit-import = 200;
          limit-weights = 400;
          limit-stop = 60;
          extra = [
            "--long-prefill-token-threshold"
            "1024"
          ];
        };
      };
      # Kept for later, and never beside the first.
      instances.spare = {
        autoStart = false;
        pack = "/srv/models/spare";
        settings.port = 8101;
      };
    };
  };

  # Machine 0 of two.
  first-of-two = {
    services.glm53-exl3 = {
      enable = true;
      instances.pair = {
        runtime = "upstream";
        pack = "/srv/models/GLM-5.3-Flash-EXL3-K2";
        apiKeyFile = "/run/secrets/api-key";
        cluster.interface = "enp1s0f0np0";
        settings = {
          host = "0.0.0.0";
          nodes = 2;
          tensor-parallel = 2;
          master-address = "169.254.10.1";
          memory-plan = false;
        };
      };
    };
  };

  # Machine 1 of two.
  second-of-two = {
    services.glm53-exl3 = {
      enable = true;
      instances.pair = {
        runtime = "upstream";
        pack = "/srv/models/GLM-5.3-Flash-EXL3-K2";
        cluster.interface = "enp1s0f0np0";
        settings = {
          nodes = 2;
          node-rank = 1;
          tensor-parallel = 2;
          master-address = "169.254.10.1";
          memory-plan = false;
        };
      };
    };
  };

  # A name of the pins and a commit of a repository, with a token; a second instance shares the pack.
  fetched = {
    services.glm53-exl3 = {
      enable = true;
      instances.agent = {
        pack = "K2";
        draft = {
          repository = "incoai/GLM-5.3-Flash-DFlash2";
          commit = "dc77ff1c99eeb2df044ee3d4f0094eb033fee410";
        };
        acceptLicence = true;
        tokenFile = "/run/secrets/hub-token";
        settings.speculation = "dflash2";
      };
      instances.chat = {
        pack = "K2";
        autoStart = false;
        settings.port = 8001;
      };
    };
  };
}
