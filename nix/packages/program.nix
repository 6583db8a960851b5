# Programs of an environment that find compiler, driver and caches wherever they are started.
{
  lib,
  runtimeShell,
  runCommand,
  writeTextFile,
  coreutils,
  cuda-home,
  hostCompiler,
  ninja,
  pins,
}:
{
  name,
  environment,
  # First arguments of the program that carries the name: `glm53-exl3-NAME`.
  arguments,
  description,
  # Whether it runs kernels on a GPU, some of them compiled when they are first used.
  cuda ? false,
}:
let
  # torch.compile needs a C++ compiler on a CPU too.
  tools = map (package: "${package}/bin") (
    [
      "${environment}"
      hostCompiler
      ninja
      coreutils
    ]
    ++ lib.optional cuda cuda-home
  );
  launcher =
    file: program: fixed:
    writeTextFile {
      name = "${file}-launcher";
      executable = true;
      destination = "/bin/${file}";
      text = ''
        #!${runtimeShell}
        set -euo pipefail
        environment=${environment}
        program=bin/${program}
        fixed=(${lib.concatMapStringsSep " " lib.escapeShellArg fixed})
        tools=${lib.concatStringsSep ":" tools}
        cuda_home="${lib.optionalString cuda "${cuda-home}"}"
        arch_list=${pins.gpu.arch_list}
        host_compiler=${hostCompiler}
        runtime=${builtins.substring 0 12 (baseNameOf (builtins.unsafeDiscardStringContext "${environment}"))}

        ${builtins.readFile ./launcher.sh}'';
    };
  main = "glm53-exl3-${name}";
  launchers = [
    (launcher main "glm53-exl3" arguments)
    (launcher "glm53-exl3" "glm53-exl3" [ ])
    (launcher "glm53-exl3-python" "python" [ ])
  ];
in
runCommand main
  {
    inherit launchers;
    passthru = { inherit environment; };
    meta = {
      inherit description;
      mainProgram = main;
      license = environment.meta.license;
      platforms = if cuda then [ "aarch64-linux" ] else environment.meta.platforms;
    };
  }
  ''
    mkdir -p $out/bin
    for launcher in $launchers; do
      ln -s $launcher/bin/* $out/bin/
    done
  ''
