# Options as data, under the names that nixpkgs' lib has for them. Written for this repository; see README.md.
{ lib }:
rec {
  mkOption = attributes: attributes // { _type = "option"; };

  isOption = value: builtins.isAttrs value && value._type or null == "option";

  mkEnableOption =
    what:
    mkOption {
      default = false;
      example = true;
      description = "Whether to enable ${what}.";
      type = lib.types.bool;
    };

  literalExpression = text: {
    _type = "literalExpression";
    inherit text;
  };

  # A part that is no identifier is shown in quotes, as one has to write it.
  showOption =
    loc:
    builtins.concatStringsSep "." (
      map (
        part:
        if builtins.match "[a-zA-Z_][a-zA-Z0-9_'-]*|<name>" part != null then part else builtins.toJSON part
      ) loc
    );

  # Values of the wrong type can be anything, so they are shown only as deep as this.
  showValue =
    value:
    {
      set =
        if value.type or null == "derivation" then
          "<derivation ${value.name or "?"}>"
        else
          "{ ${builtins.concatStringsSep " " (builtins.attrNames value)} }";
      list = "[ ${builtins.concatStringsSep " " (map showValue value)} ]";
      lambda = "<function>";
      path = toString value;
    }
    .${builtins.typeOf value} or (builtins.toJSON value);

  showDefinitions =
    definitions:
    builtins.concatStringsSep "" (
      map (each: "\n- In `${each.file}': ${showValue each.value}") definitions
    );
}
