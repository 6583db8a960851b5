# Options of `settings`, made from nix/settings.json, which tools/options/settings.py makes from the code of `serve`.
{ lib }:
let
  inherit (builtins)
    attrNames
    filter
    fromJSON
    listToAttrs
    map
    readFile
    toJSON
    ;
  inherit (lib) mkOption types;

  specs = fromJSON (readFile ../settings.json);

  # Set by the module from options of its own: where a pack is fetched to, which runtime its package has, where systemd
  # puts the key.
  owned = [
    "pack"
    "draft"
    "runtime"
    "api-key-file"
  ];

  number =
    spec: between: unbounded:
    if spec.minimum == null then
      unbounded
    else if spec.maximum == null then
      types.addCheck unbounded (value: value >= spec.minimum)
      // {
        description = "integer of at least ${toString spec.minimum}";
      }
    else
      between spec.minimum spec.maximum;

  integer = spec: number spec types.ints.between types.int;

  typeOf =
    spec:
    {
      string =
        if spec.choices != [ ] then
          types.enum spec.choices
        else if spec.minimum != null then
          types.nonEmptyStr
        else
          types.str;
      integer = integer spec;
      number = types.numbers.between spec.minimum spec.maximum;
      boolean = types.bool;
      path = types.path;
      strings = types.listOf types.str;
      integers = types.listOf (integer spec);
    }
    .${spec.kind};

  # What holds when the option is null: it is left out of the file, so that the profile or serve decides.
  otherwise =
    spec:
    let
      ofProfiles = map (name: "`${name}` ${toJSON spec.by_profile.${name}}") (attrNames spec.by_profile);
      several = filter (name: spec.by_profile.${name} != spec.by_profile.chat) (attrNames spec.by_profile) != [ ];
      byProfile =
        if spec.by_profile == { } then
          ""
        else if several then
          "By profile: ${builtins.concatStringsSep ", " ofProfiles}."
        else
          "By every profile: ${toJSON spec.by_profile.chat}.";
      byDefault = if spec.by_default == "" then "" else "Otherwise: ${spec.by_default}.";
    in
    filter (text: text != "") [
      byProfile
      byDefault
    ];

  description =
    spec:
    builtins.concatStringsSep " " (
      [ spec.help ]
      ++ (if spec.unit == "" then [ ] else [ "Unit: ${spec.unit}." ])
      ++ (if spec.default == null then otherwise spec else [ ])
    );

  optionOf =
    spec:
    mkOption {
      type = if spec.default == null then types.nullOr (typeOf spec) else typeOf spec;
      inherit (spec) default;
      description = description spec;
    };

  declared = filter (spec: !builtins.elem spec.key owned) specs;
in
{
  options = listToAttrs (
    map (spec: {
      name = spec.key;
      value = optionOf spec;
    }) declared
  );

  # Values that the settings file has to state.
  stated =
    settings:
    listToAttrs (
      map (spec: {
        name = spec.key;
        # A path must not become a copy in the store, as it would in JSON.
        value = if spec.kind == "path" then toString settings.${spec.key} else settings.${spec.key};
      }) (filter (spec: settings.${spec.key} != spec.default) declared)
    );

  # What holds for a setting that nothing but the schema knows: its default, by the profile where there is one.
  effective =
    settings: key:
    let
      spec = builtins.head (filter (each: each.key == key) specs);
    in
    if settings.${key} != null then settings.${key} else spec.by_profile.${settings.profile} or spec.default;
}
