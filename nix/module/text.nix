# Text in the syntaxes that the module writes: arguments and values of systemd units, TOML. Pure, builtins only.
let
  inherit (builtins)
    attrNames
    concatStringsSep
    fromJSON
    isAttrs
    isList
    isString
    map
    match
    replaceStrings
    toJSON
    ;

  # The one control character that JSON leaves as it is and TOML forbids.
  delete = fromJSON ''"\u007f"'';
in
rec {
  # `text` in double quotes, with the escapes that JSON, TOML and systemd share.
  quoted = text: replaceStrings [ delete ] [ "\\u007f" ] (toJSON (toString text));

  # `text` where systemd expands specifiers: in paths and environments.
  withoutSpecifiers = replaceStrings [ "%" ] [ "%%" ];

  # One argument of ExecStart: no word is split, no specifier or variable expanded.
  execArgument = text: replaceStrings [ "%" "$" ] [ "%%" "$$" ] (quoted text);

  # The program comes first and unquoted: systemd reads prefixes such as "-" and "@" even within quotes.
  execLine =
    program: arguments:
    if match "/[A-Za-z0-9/._+=-]*" program == null then
      throw "The program `${program}' of a unit has to be an absolute path of letters, digits and ._+=-."
    else
      concatStringsSep " " ([ program ] ++ map execArgument arguments);

  # Flat TOML of an attribute set whose values are strings, numbers, truth values and lists of those.
  toToml =
    values: concatStringsSep "" (map (key: "${key} = ${tomlValue key values.${key}}\n") (attrNames values));

  tomlValue =
    key: value:
    if isString value || builtins.isPath value then
      quoted value
    else if isList value then
      "[${concatStringsSep ", " (map (tomlValue key) value)}]"
    else if isAttrs value || value == null then
      throw "The setting `${key}' is ${toJSON value}, which a settings file of one level cannot hold."
    else
      toJSON value;
}
