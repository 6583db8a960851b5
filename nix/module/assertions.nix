# What a configuration may not say, as sentences. Pure, builtins only.
{
  # As of services.glm53-exl3.
  config,
  # Of the machine, as "aarch64-linux".
  system,
  # Whether the machine loads the driver's libraries.
  graphics,
  units,
  # Value of a setting that holds, by settings and key.
  effective,
}:
let
  inherit (builtins)
    attrNames
    concatMap
    concatStringsSep
    elem
    filter
    foldl'
    head
    length
    map
    match
    tail
    toJSON
    ;

  names = attrNames config.instances;
  at = name: config.instances.${name};
  option = name: "services.glm53-exl3.instances.${name}";
  gpuNames = filter (name: (at name).gpu) names;
  settingOf = name: effective (at name).settings;
  listed = concatStringsSep ", ";

  require = assertion: message: { inherit assertion message; };

  pairs =
    items:
    if items == [ ] then
      [ ]
    else
      map (other: [
        (head items)
        other
      ]) (tail items)
      ++ pairs (tail items);

  # Ports of a server on this machine: of its API, and of the meeting of its ranks.
  portsOf =
    name:
    (if settingOf name "node-rank" == 0 then [ (settingOf name "port") ] else [ ])
    ++ (if settingOf name "nodes" > 1 && settingOf name "node-rank" == 0 then [ (settingOf name "master-port") ] else [ ]);

  portClashes =
    map (
      pair:
      let
        first = head pair;
        second = head (tail pair);
        shared = filter (port: elem port (portsOf second)) (portsOf first);
      in
      require (shared == [ ]) "The instances ${first} and ${second} of services.glm53-exl3 both listen on port ${
        listed (map toString shared)
      }. Set ${option second}.settings.port to another."
    ) (pairs names)
    ++ map (
      name:
      require (length (portsOf name) < 2 || head (portsOf name) != head (tail (portsOf name))) "${option name}.settings has port and master-port both at ${
        toString (settingOf name "port")
      }. Set one of them to another."
    ) names;

  started = filter (name: (at name).autoStart) gpuNames;
  sumGiB = foldl' (sum: name: sum + (at name).plannedMemoryGiB) 0 gpuNames;
  unplanned = filter (name: (at name).plannedMemoryGiB == null) gpuNames;

  gpuMemory =
    if config.exclusiveGpu then
      [
        (require (length started <= 1)
          "The instances ${listed started} of services.glm53-exl3 are all started at boot, and with exclusiveGpu only one may run. Set autoStart = false for all but one, or exclusiveGpu = false with plannedMemoryGiB for each."
        )
      ]
    else
      map (
        name:
        require false "${option name}.plannedMemoryGiB is not set, and without exclusiveGpu the sum over all instances has to be known. Set it to what glm53-exl3 plan says."
      ) unplanned
      ++ [
        (require (unplanned != [ ] || sumGiB <= config.memoryGiB)
          "The instances ${listed gpuNames} of services.glm53-exl3 plan ${toJSON sumGiB} GiB together, and services.glm53-exl3.memoryGiB is ${toJSON config.memoryGiB}. Lower their context, or set exclusiveGpu = true."
        )
      ];

  ofInstance =
    name:
    let
      instance = at name;
      setting = settingOf name;
      nodes = setting "nodes";
      ranks = setting "tensor-parallel";
      rank = setting "node-rank";
      inStore = path: path != null && match "${builtins.storeDir}/.*" (toString path) != null;
    in
    [
      (require (match "[a-z0-9][a-z0-9-]*" name != null && match "fetch-.*" name == null)
        "The instance ${toJSON name} of services.glm53-exl3 gives names to units and folders. Use small letters, digits and dashes, and do not begin with \"fetch-\"."
      )
      (require (instance.pack != null)
        "${option name}.pack is not set. Set it to the folder of a pack, a name such as \"K2\", or { repository = \"owner/name\"; }."
      )
      (require (!instance.gpu || system == "aarch64-linux")
        "${option name} runs on the GPU of a DGX Spark, whose runtimes are built for aarch64-linux, and this machine is ${system}. For the demo pack without a GPU set gpu = false and settings.profile = \"demo\"."
      )
      (require (!instance.gpu || graphics)
        "${option name} runs on the GPU, and this machine is configured without its driver. Set hardware.graphics.enable = true, hardware.nvidia.open = true and services.xserver.videoDrivers = [ \"nvidia\" ]."
      )
      (require (!instance.gpu || setting "kernel" != "reference" || setting "enforce-eager")
        "${option name}.settings.kernel is \"reference\", which no CUDA graph can hold. Leave it out, or set settings.enforce-eager = true for experts that are exact and far slower."
      )
      (require (instance.gpu || setting "kernel" != "exllamav3")
        "${option name}.settings.kernel is \"exllamav3\", which runs on a GPU, and gpu is false. Leave it out."
      )
      (require (rank > 0 || units.isLoopback (setting "host") || instance.apiKeyFile != null || setting "allow-open")
        "${option name}.settings.host is ${toJSON (setting "host")} without an API key: whoever reaches port ${toString (setting "port")} could use the model. Set apiKeyFile, or settings.allow-open = true if that is meant."
      )
      (require (rank < nodes)
        "${option name}.settings.node-rank is ${toString rank}, and settings.nodes is ${toString nodes}. Machines are counted from 0 to ${toString (nodes - 1)}."
      )
      (require (nodes == 1 || setting "master-address" != null)
        "${option name}.settings.nodes is ${toString nodes} without settings.master-address. Set it to the address of machine 0 on the link between the machines, the same on each."
      )
      (require (ranks / nodes * nodes == ranks)
        "${option name}.settings.tensor-parallel is ${toString ranks}, which ${toString nodes} nodes cannot share evenly. Set it to ${toString nodes} for one GPU each."
      )
      (require (instance.cluster.interface == null || nodes > 1)
        "${option name}.cluster.interface is ${toJSON instance.cluster.interface} with one node, and its ports would be open for nothing. Set settings.nodes, or leave it out."
      )
      (require (!inStore instance.apiKeyFile)
        "${option name}.apiKeyFile is in ${builtins.storeDir}, which everybody on this machine can read. Name a file outside of it, as a string."
      )
      (require (!inStore instance.tokenFile)
        "${option name}.tokenFile is in ${builtins.storeDir}, which everybody on this machine can read. Name a file outside of it, as a string."
      )
    ];
in
concatMap ofInstance names ++ portClashes ++ gpuMemory
