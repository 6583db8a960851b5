# Units of an instance as data for `systemd.services`. Pure, builtins only: tests read it without nixpkgs.
#
# An instance is an attribute set of
#   name, description   of the instance
#   command             the program `glm53-exl3` of its runtime
#   build               names that program in the folders of what is compiled at run time
#   runtime             "fork" or "upstream"
#   settingsFile        the file that `serve` reads
#   sources             packs to fetch: { wanted; directory; acceptLicence; }, in the order in which they are fetched
#   fetchAfter          names of instances whose fetch comes first
#   apiKeyFile          a path as a string, or null
#   tokenFile           a path as a string, or null
#   gpu                 whether it uses the GPU
#   autoStart           whether it is started at boot
#   host                address that it listens on
#   nodes               machines that share the model
#   interface           of the link between the machines, or null
#   stopSeconds         that vLLM gets to end by itself
#   conflicts           names of instances that must not run beside it
#   readPaths           packs that lie where the unit would see nothing, as strings
#   groups              further groups
let
  inherit (builtins)
    filter
    map
    match
    ;
  text = import ./module/text.nix;
  hardening = import ./module/hardening.nix;

  caches = "/var/cache/glm53-exl3";
in
rec {
  serveName = name: "glm53-exl3-${name}";
  fetchName = name: "glm53-exl3-fetch-${name}";
  serviceOf = unit: "${unit}.service";
  packs = "/var/lib/glm53-exl3/packs";

  # Whether only this machine reaches a server on `host`; as `is_loopback` of serve/setting_rules.py.
  isLoopback = host: match "127\\..*|::1|\\[::1]|[Ll][Oo][Cc][Aa][Ll][Hh][Oo][Ss][Tt]" host != null;

  # Whether a unit with ProtectHome=true and PrivateTmp=true sees nothing at `path`.
  isHidden = path: match "/(home|root|run/user|tmp|var/tmp)(/.*)?" path != null;

  # { <unit> = one of systemd.services; } of an instance.
  unitsOf =
    instance:
    {
      ${serveName instance.name} = serveUnit instance;
    }
    // (if instance.sources == [ ] then { } else { ${fetchName instance.name} = fetchUnit instance; });

  serveUnit =
    instance:
    let
      isLocal = isLoopback instance.host && instance.nodes == 1;
      fetch = map (_: serviceOf (fetchName instance.name)) (firstOf instance.sources);
      others = map (name: serviceOf (serveName name)) instance.conflicts;
      # An address has to exist before it can be listened on, and the other machine to be reached.
      online = if isLocal then [ ] else [ "network-online.target" ];
    in
    {
      description = "${instance.description}, served from EXL3 weights by vLLM";
      wantedBy = if instance.autoStart then [ "multi-user.target" ] else [ ];
      wants = online;
      requires = fetch;
      conflicts = others;
      after = [
        "network.target"
        # Where it is used, it has the driver loaded before preflight looks for it.
        "nvidia-persistenced.service"
      ]
      ++ online
      ++ fetch
      # In one direction only, or systemd would see a cycle; stopping comes before starting in either.
      ++ filter (unit: unit < serviceOf (serveName instance.name)) others;
      environment =
        cachesOf instance
        // (
          if instance.interface == null then
            { }
          else
            {
              # With "=" NCCL takes this interface and none that begins alike; Gloo knows no other way.
              NCCL_SOCKET_IFNAME = "=${instance.interface}";
              GLOO_SOCKET_IFNAME = instance.interface;
            }
        );
      unitConfig = {
        # A start takes up to 12 minutes on a GB10: four failures within this time are no accident.
        StartLimitIntervalSec = "1h";
        StartLimitBurst = 4;
      };
      serviceConfig =
        hardening.common
        // hardening.serve
        // (if instance.gpu then hardening.gpu else hardening.cpu)
        // (if isLocal then hardening.local else { })
        // {
          # Ready once the model has answered sanely.
          Type = "notify";
          NotifyAccess = "main";
          ExecStart = text.execLine instance.command [
            "serve"
            "--settings"
            instance.settingsFile
          ];
          # Until serve asks for more, which it does first of all and again while a phase is within its limit.
          TimeoutStartSec = "3min";
          # serve ends vLLM by itself in this time; systemd comes after it.
          TimeoutStopSec = instance.stopSeconds + 15;
          # Only serve hears SIGTERM: workers that end before their engine look like a crash.
          KillMode = "mixed";
          Restart = "on-failure";
          # What vLLM asks for; the default is 1,024, and each client takes one.
          LimitNOFILE = 65535;
          # Memory that was given back has to be free again before the plan counts it.
          RestartSec = 30;
          # 65: pack, settings or preflight refuse. 69: the model answered wrongly. Neither mends itself.
          RestartPreventExitStatus = "65 69";
          CacheDirectory = "glm53-exl3/${instance.name}";
          CacheDirectoryMode = "0700";
          DeviceAllow = devicesOf instance;
          LoadCredential = credential "api-key" instance.apiKeyFile;
          BindReadOnlyPaths = map bindArgument instance.readPaths;
          # Below ProtectHome=true nothing could be bound.
          ProtectHome = if instance.readPaths == [ ] then true else "tmpfs";
          SupplementaryGroups = instance.groups;
        }
        // (
          if instance.sources == [ ] then
            { }
          else
            {
              StateDirectory = "glm53-exl3/packs";
              StateDirectoryMode = "0700";
            }
        );
    };

  fetchUnit = instance: {
    description = "Weights of ${instance.name} from the Hugging Face Hub";
    wants = [ "network-online.target" ];
    after = [ "network-online.target" ] ++ map (name: serviceOf (fetchName name)) instance.fetchAfter;
    # Pulled in by the server alone.
    wantedBy = [ ];
    requires = [ ];
    conflicts = [ ];
    environment = homeOf "fetch-${instance.name}";
    unitConfig = {
      # fetch itself tries six times and waits between; a run that got anywhere takes longer than this allows.
      StartLimitIntervalSec = "2h";
      StartLimitBurst = 6;
    };
    serviceConfig =
      hardening.common
      // hardening.fetch
      // {
        Type = "oneshot";
        RemainAfterExit = true;
        ExecStart = map (fetchLine instance) instance.sources;
        # 91 GiB take as long as they take; fetch gives up by itself on a connection that stalls.
        TimeoutStartSec = "infinity";
        # What was begun is resumed.
        Restart = "on-failure";
        RestartSec = 60;
        # Up to half an hour between attempts. These three need systemd 254.
        RestartSteps = 5;
        RestartMaxDelaySec = "30min";
        # The server waits for the next attempt instead of failing with this one.
        RestartMode = "direct";
        # Wrong usage: the next attempt would be as wrong.
        RestartPreventExitStatus = "2";
        CacheDirectory = "glm53-exl3/fetch-${instance.name}";
        CacheDirectoryMode = "0700";
        StateDirectory = "glm53-exl3/packs";
        StateDirectoryMode = "0700";
        LoadCredential = credential "hub-token" instance.tokenFile;
      };
  };

  # --- parts ---
  fetchLine =
    instance: source:
    text.execLine instance.command (
      [
        "fetch"
        source.wanted
        "--dir"
        source.directory
        "--runtime"
        instance.runtime
        # This unit sees no GPU, and the runtime is the one that was built for this machine: serve checks both.
        "--no-runtime"
        "--anyway"
        "--quiet"
      ]
      ++ (if source.acceptLicence then [ "--accept-licence" ] else [ ])
    );

  # A home for what libraries keep, since the unit has none.
  homeOf = name: {
    HOME = "${caches}/${name}";
    XDG_CACHE_HOME = "${caches}/${name}/xdg";
    HF_HOME = "${caches}/${name}/huggingface";
  };

  # And folders for what is compiled at run time, which is of use only to the build that compiled it.
  cachesOf =
    instance:
    let
      at = folder: "${caches}/${instance.name}/${instance.build}/${folder}";
    in
    homeOf instance.name
    // {
      VLLM_CACHE_ROOT = at "vllm";
      TRITON_CACHE_DIR = at "triton";
      TORCHINDUCTOR_CACHE_DIR = at "inductor";
      FLASHINFER_WORKSPACE_BASE = at "flashinfer";
      DG_JIT_CACHE_DIR = at "deep_gemm";
      TILELANG_CACHE_DIR = at "tilelang";
    };

  devicesOf =
    instance:
    (if instance.gpu then hardening.gpu.DeviceAllow else [ ])
    ++ (if instance.nodes > 1 then hardening.infiniband else [ ]);

  # What follows the first colon is the path, blanks and all.
  credential =
    id: path: if path == null then [ ] else [ "${id}:${text.withoutSpecifiers path}" ];

  # A colon would end the path.
  bindArgument =
    path: builtins.replaceStrings [ "%" ":" ] [ "%%" "\\:" ] (text.quoted path);

  firstOf = list: if list == [ ] then [ ] else [ (builtins.head list) ];
}
