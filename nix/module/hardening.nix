# What a unit may not do. Pure. Every line that gives something back says why.
{
  # [Service] of every unit.
  common = {
    # No account to manage, and nothing stays behind under its number. One name for all units, so that what a fetch
    # unit writes belongs to the server that reads it.
    DynamicUser = true;
    User = "glm53-exl3";
    UMask = "0077";
    NoNewPrivileges = true;
    CapabilityBoundingSet = "";
    AmbientCapabilities = "";
    KeyringMode = "private";
    LockPersonality = true;
    PrivateMounts = true;
    PrivateTmp = true;
    PrivateUsers = true;
    # A core would hold the API key and what users wrote.
    LimitCORE = 0;
    # Not ProcSubset=pid: memory plan and preflight read /proc/meminfo and /proc/cpuinfo, the driver /proc/driver.
    ProcSubset = "all";
    ProtectClock = true;
    ProtectControlGroups = true;
    ProtectHome = true;
    ProtectHostname = true;
    ProtectKernelLogs = true;
    ProtectKernelModules = true;
    ProtectKernelTunables = true;
    ProtectProc = "invisible";
    ProtectSystem = "strict";
    RemoveIPC = true;
    RestrictNamespaces = true;
    RestrictRealtime = true;
    RestrictSUIDSGID = true;
    SystemCallArchitectures = "native";
    SystemCallErrorNumber = "EPERM";
  };

  fetch = {
    DevicePolicy = "closed";
    PrivateDevices = true;
    # Nothing compiles while files are downloaded.
    MemoryDenyWriteExecute = true;
    # AF_INET and AF_INET6 are for the Hub, which has no fixed addresses; AF_UNIX for names by nscd.
    RestrictAddressFamilies = [
      "AF_INET"
      "AF_INET6"
      "AF_UNIX"
    ];
    SystemCallFilter = [
      "@system-service"
      "~@privileged @resources"
    ];
  };

  serve = {
    # Not MemoryDenyWriteExecute: Triton, FlashInfer, torch.compile and numba write code and run it.
    MemoryDenyWriteExecute = false;
    # AF_INET and AF_INET6 for the API; AF_UNIX between vLLM's processes and to systemd; AF_NETLINK because NCCL and
    # Gloo list the interfaces through it.
    RestrictAddressFamilies = [
      "AF_INET"
      "AF_INET6"
      "AF_NETLINK"
      "AF_UNIX"
    ];
    # Not without @resources: vLLM binds its threads to cores, and CUDA its memory to nodes.
    SystemCallFilter = [
      "@system-service"
      "~@privileged"
    ];
  };

  # Only with a GPU.
  gpu = {
    # /dev/nvidia* lie outside the devices that PrivateDevices keeps; what else is there stays closed.
    PrivateDevices = false;
    DevicePolicy = "closed";
    # Names of the driver's character devices differ between its releases; systemd passes over those that are missing.
    DeviceAllow = [
      "char-nvidia rw"
      "char-nvidiactl rw"
      "char-nvidia-frontend rw"
      "char-nvidia-uvm rw"
      "char-nvidia-caps rw"
    ];
    # Pinned memory is locked; the default of 8 MiB ends the start.
    LimitMEMLOCK = "infinity";
  };

  # Only without one.
  cpu = {
    PrivateDevices = true;
    DevicePolicy = "closed";
  };

  # Only with several machines: NCCL talks to the other through the adapter's verbs.
  infiniband = [ "char-infiniband_verbs rw" ];

  # Only while nobody beyond this machine is to reach it: what a model or a library would send out stays here too. This
  # shuts out the machine's own address too, which is why serve tells vLLM to use loopback.
  local = {
    IPAddressDeny = "any";
    IPAddressAllow = "localhost";
  };
}
