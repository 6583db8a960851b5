# The functions of nixpkgs' lib that this repository uses, under the same names and with the same results. Nothing else is
# here on purpose: what is missing fails in a test instead of on a user's machine.
let
  inherit (builtins)
    attrNames
    concatStringsSep
    filter
    functionArgs
    head
    intersectAttrs
    isFunction
    isPath
    length
    listToAttrs
    match
    replaceStrings
    stringLength
    substring
    ;
  lib =
    {
      inherit (builtins)
        attrNames
        attrValues
        concatMap
        concatStringsSep
        elem
        filter
        hasAttr
        mapAttrs
        ;

      genAttrs =
        names: value:
        listToAttrs (
          map (name: {
            inherit name;
            value = value name;
          }) names
        );
      nameValuePair = name: value: { inherit name value; };
      mapAttrs' = convert: set: listToAttrs (map (name: convert name set.${name}) (attrNames set));
      mapAttrsToList = convert: set: map (name: convert name set.${name}) (attrNames set);
      filterAttrs =
        keep: set: lib.genAttrs (filter (name: keep name set.${name}) (attrNames set)) (name: set.${name});
      hasAttrByPath =
        path: set: path == [ ] || (set ? ${head path} && lib.hasAttrByPath (builtins.tail path) set.${head path});

      optional = condition: value: if condition then [ value ] else [ ];
      optionals = condition: values: if condition then values else [ ];
      optionalString = condition: text: if condition then text else "";
      optionalAttrs = condition: set: if condition then set else { };
      unique = builtins.foldl' (seen: one: if builtins.elem one seen then seen else seen ++ [ one ]) [ ];

      concatMapStringsSep =
        separator: convert: values:
        concatStringsSep separator (map convert values);
      toLower =
        text:
        replaceStrings
          [ "A" "B" "C" "D" "E" "F" "G" "H" "I" "J" "K" "L" "M" "N" "O" "P" "Q" "R" "S" "T" "U" "V" "W" "X" "Y" "Z" ]
          [ "a" "b" "c" "d" "e" "f" "g" "h" "i" "j" "k" "l" "m" "n" "o" "p" "q" "r" "s" "t" "u" "v" "w" "x" "y" "z" ]
          text;
      hasPrefix = prefix: text: substring 0 (stringLength prefix) text == prefix;
      hasSuffix =
        suffix: text:
        let
          start = stringLength text - stringLength suffix;
        in
        start >= 0 && substring start (-1) text == suffix;
      removeSuffix =
        suffix: text:
        if lib.hasSuffix suffix text then substring 0 (stringLength text - stringLength suffix) text else text;
      removePrefix =
        prefix: text: if lib.hasPrefix prefix text then substring (stringLength prefix) (-1) text else text;
      splitString = separator: text: filter builtins.isString (builtins.split (lib.escapeRegex separator) text);
      escapeRegex = replaceStrings (map (one: one) (lib.stringToCharacters "\\[{()^$?*+|.")) (
        map (one: "\\${one}") (lib.stringToCharacters "\\[{()^$?*+|.")
      );
      stringToCharacters = text: builtins.genList (at: substring at 1 text) (stringLength text);
      escapeShellArg =
        value:
        let
          text = toString value;
        in
        if match "[[:alnum:],._+:@%/-]+" text != null then
          text
        else
          "'${replaceStrings [ "'" ] [ "'\\''" ] text}'";

      callPackageWith =
        scope: file: given:
        let
          function = if isFunction file then file else import file;
          wanted = functionArgs function;
          missing = filter (name: !wanted.${name} && !(scope ? ${name}) && !(given ? ${name})) (attrNames wanted);
        in
        if missing != [ ] then
          throw "the stub of nixpkgs has no ${concatStringsSep ", " missing}, which ${
            if isPath file then toString file else "a function"
          } asks for"
        else
          function (intersectAttrs wanted scope // given);
      makeScope =
        newScope: members:
        let
          self = members self // {
            inherit newScope;
            callPackage = newScope self;
          };
        in
        self;

      getLib = package: package.lib or package;
      getExe = package: "${package}/bin/${package.meta.mainProgram}";

      licenses = {
        asl20.spdxId = "Apache-2.0";
        mit.spdxId = "MIT";
        unfreeRedistributable.free = false;
      };
      platforms.linux = [
        "aarch64-linux"
        "x86_64-linux"
      ];
      sourceTypes = {
        binaryNativeCode.isSource = false;
        fromSource.isSource = true;
      };
    }
    // import ./options.nix { inherit lib; }
    // import ./modules.nix { inherit lib; }
    // {
      types = import ./types.nix { inherit lib; };
    };
in
lib
