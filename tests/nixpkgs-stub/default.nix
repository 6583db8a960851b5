# Packages of the stub: real derivations with the name, environment, inputs and system that ours would have in nixpkgs. What
# is for x86_64-linux is built with Debian's tools in /usr/bin; what is for aarch64-linux is only instantiated.
{
  system,
  config ? { },
  overlays ? [ ],
}:
let
  lib = import ./lib;

  # Attributes that say something about a package instead of being part of its build.
  notes = [
    "meta"
    "passthru"
  ];

  mkDerivation =
    arguments:
    let
      given = if builtins.isFunction arguments then arguments package else arguments;
      name = given.name or "${given.pname}-${given.version}";
      package =
        derivation (
          {
            inherit name system;
            builder = "/bin/bash";
            args = [ ./builders/generic.sh ];
          }
          // removeAttrs given (
            notes ++ lib.optional (given ? name || given ? pname) "name"
          )
        )
        // {
          inherit name;
          meta = given.meta or { };
          passthru = given.passthru or { };
          overrideAttrs = change: mkDerivation (given // change given);
        }
        // given.passthru or { };
    in
    package;

  # A package of Debian's, as links to what /usr has of it.
  fromSystem =
    name: script:
    mkDerivation {
      inherit name;
      dontUnpack = true;
      installPhase = script;
    };

  program =
    name:
    fromSystem "stub-${name}" "mkdir -p $out/bin; if [ -e /usr/bin/${name} ]; then ln -s /usr/bin/${name} $out/bin/; fi";

  base = final: {
    inherit lib config;
    callPackage = lib.callPackageWith final;
    newScope = extra: lib.callPackageWith (final // extra);

    stdenv = {
      inherit mkDerivation;
      hostPlatform = {
        inherit system;
        isAarch64 = system == "aarch64-linux";
        isx86_64 = system == "x86_64-linux";
        isLinux = true;
      };
      cc = fromSystem "stub-gcc-wrapper" "mkdir -p $out/bin; ln -s /usr/bin/gcc $out/bin/cc; ln -s /usr/bin/g++ $out/bin/c++" // {
        cc = fromSystem "stub-gcc" "mkdir -p $out/lib; ln -s /usr/lib/*-linux-gnu/lib{stdc++.so.6,gcc_s.so.1,gomp.so.1} $out/lib/";
        bintools.dynamicLinker =
          {
            aarch64-linux = "/lib/ld-linux-aarch64.so.1";
            x86_64-linux = "/lib64/ld-linux-x86-64.so.2";
          }
          .${system};
      };
    };
    gcc14 = final.stdenv.cc;
    runtimeShell = "/bin/bash";
    python312 =
      # The real one where Debian's tools have it. With another, what is installed for 3.12 does not import.
      fromSystem "stub-python3" ''
        mkdir -p $out/bin
        real=/usr/bin/python3.12
        [ -e $real ] || real=/usr/bin/python3
        for name in python python3 python3.12; do ln -s $real $out/bin/$name; done
      ''
      // rec {
        interpreter = "${final.python312}/bin/python3.12";
        pythonVersion = "3.12";
        sitePackages = "lib/python3.12/site-packages";
      };

    fetchPypi =
      {
        pname,
        version,
        format,
        dist,
        python,
        abi,
        platform,
        hash,
      }:
      derivation {
        name = "${pname}-${version}-${python}-${abi}-${platform}.whl";
        # Bytes are the same everywhere, so the machine at hand fetches them whatever they are for.
        system = builtins.currentSystem or "x86_64-linux";
        builder = "/bin/bash";
        args = [ ./builders/fetch-wheel.sh ];
        inherit
          pname
          version
          python
          abi
          platform
          ;
        outputHashMode = "flat";
        outputHashAlgo = "sha256";
        outputHash = hash;
        preferLocalBuild = true;
        # What pip is told about its index and certificates.
        impureEnvVars = [
          "PIP_INDEX_URL"
          "PIP_CERT"
          "SSL_CERT_FILE"
          "http_proxy"
          "https_proxy"
          "no_proxy"
        ];
      };

    linkFarm =
      name: entries:
      mkDerivation {
        inherit name;
        dontUnpack = true;
        names = map (each: each.name) entries;
        paths = map (each: "${each.path}") entries;
        installPhase = ''
          mkdir -p $out
          names=($names); paths=($paths)
          for at in "''${!names[@]}"; do ln -s "''${paths[at]}" "$out/''${names[at]}"; done
        '';
      };
    runCommand =
      name: attributes: script:
      mkDerivation (
        attributes
        // {
          inherit name;
          dontUnpack = true;
          installPhase = script;
        }
      );
    writeTextFile =
      {
        name,
        text,
        executable ? false,
        destination ? "",
      }:
      mkDerivation {
        inherit name text;
        passAsFile = [ "text" ];
        dontUnpack = true;
        installPhase = ''
          mkdir -p "$(dirname "$out${destination}")"
          cp "$textPath" "$out${destination}"
          ${lib.optionalString executable "chmod +x \"$out${destination}\""}
        '';
      };
    writeText = name: text: final.writeTextFile { inherit name text; };
    mkShell = attributes: mkDerivation ({ name = "shell"; } // attributes);

    # Versions are such as the pinned nixpkgs may have; what is in /usr says another.
    cmake = program "cmake" // { version = "4.1.2"; };
    ninja = program "ninja" // { version = "1.13.1"; };
  }
  // lib.genAttrs [
    "coreutils"
    "gnumake"
    "nixfmt-tree"
    "patchelf"
    "shellcheck"
  ] program
  // lib.genAttrs [ "numactl" "rdma-core" "zlib" ] (
    name: fromSystem "stub-${name}" "mkdir -p $out/lib; ln -s /usr/lib/*-linux-gnu/lib{z,numa}.so.1 $out/lib/"
  );

  # Overlays as in nixpkgs: each sees the final set and what came before it.
  packages =
    let
      final = builtins.foldl' (before: overlay: before // overlay final before) (base final) overlays;
    in
    final;
in
packages
