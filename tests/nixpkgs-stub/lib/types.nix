# Types of options: a check of each definition, a merge of all. Only what the module uses; see README.md.
{ lib }:
let
  inherit (builtins)
    all
    attrNames
    concatMap
    concatStringsSep
    elem
    filter
    foldl'
    head
    isAttrs
    isBool
    isFloat
    isInt
    isList
    isPath
    isString
    length
    listToAttrs
    match
    substring
    tail
    toJSON
    ;
  inherit (lib) showDefinitions showOption;

  values = map (each: each.value);

  # One definition, or several that are the same.
  mergeEqual =
    loc: definitions:
    if all (value: value == head (values definitions)) (tail (values definitions)) then
      head (values definitions)
    else
      throw "The option `${showOption loc}' has conflicting definition values:${showDefinitions definitions}";

  mergeOne =
    loc: definitions:
    if length definitions == 1 then
      head (values definitions)
    else
      throw "The option `${showOption loc}' is defined multiple times while it's expected to be unique:${showDefinitions definitions}";

  makeType =
    {
      name,
      # shown where a definition is refused
      description ? name,
      check ? (_: true),
      # of definitions that passed the check, without properties
      merge ? mergeEqual,
      # options within a value, for documents
      getSubOptions ? (_: { }),
      # whether the description needs brackets within another
      composite ? false,
    }:
    {
      _type = "option-type";
      inherit
        name
        description
        check
        merge
        getSubOptions
        composite
        ;
    };

  inBrackets = type: if type.composite then "(${type.description})" else type.description;
  # Lists and sets take what they hold without brackets, unless it is a submodule.
  ofWhat = type: if type.name == "submodule" then inBrackets type else type.description;

  mergeAttrs =
    element: loc: definitions:
    let
      names = attrNames (foldl' (all': each: all' // each.value) { } definitions);
      of =
        name:
        map (each: {
          inherit (each) file;
          value = each.value.${name};
        }) (filter (each: each.value ? ${name}) definitions);
      evaluated = map (name: {
        inherit name;
        value = lib.evalDefinitions (loc ++ [ name ]) element (of name);
      }) names;
    in
    # An element all of whose definitions are disabled does not exist.
    listToAttrs (
      map (each: {
        inherit (each) name;
        value = each.value.value;
      }) (filter (each: each.value.isDefined) evaluated)
    );

  between =
    name: description: isKind: low: high:
    makeType {
      inherit name;
      description = "${description} between ${toString low} and ${toString high} (both inclusive)";
      check = value: isKind value && value >= low && value <= high;
    };

  isNumber = value: isInt value || isFloat value;
in
rec {
  inherit mergeEqual;

  raw = makeType {
    name = "raw";
    description = "raw value";
    merge = mergeOne;
  };

  unspecified = makeType {
    name = "unspecified";
    description = "unspecified value";
  };

  anything = unspecified // {
    name = "anything";
    description = "anything";
  };

  bool = makeType {
    name = "bool";
    description = "boolean";
    check = isBool;
  };

  int = makeType {
    name = "int";
    description = "signed integer";
    check = isInt;
  };

  ints = {
    between = between "intBetween" "integer" isInt;
  };

  numbers = {
    between = between "numberBetween" "integer or floating point number" isNumber;
    nonnegative = makeType {
      name = "numberNonnegative";
      description = "nonnegative integer or floating point number, meaning >=0";
      composite = true;
      check = value: isNumber value && value >= 0;
    };
  };

  port = ints.between 0 65535 // {
    description = "16 bit unsigned integer; between 0 and 65535 (both inclusive)";
  };

  str = makeType {
    name = "str";
    description = "string";
    check = isString;
  };

  nonEmptyStr = makeType {
    name = "nonEmptyStr";
    description = "non-empty string";
    check = value: isString value && match "[ \t\n]*" value == null;
  };

  strMatching =
    pattern:
    makeType {
      name = "strMatching";
      description = "string matching the pattern ${pattern}";
      check = value: isString value && match pattern value != null;
    };

  path = makeType {
    name = "path";
    description = "absolute path";
    check = value: isPath value || (isString value && substring 0 1 value == "/") || (isAttrs value && value ? outPath);
  };

  package = makeType {
    name = "package";
    check = value: isAttrs value && value.type or null == "derivation";
    merge = mergeOne;
  };

  enum =
    choices:
    makeType {
      name = "enum";
      description = "one of ${concatStringsSep ", " (map toJSON choices)}";
      check = value: elem value choices;
    };

  nullOr =
    type:
    makeType {
      name = "nullOr";
      description = "null or ${inBrackets type}";
      check = value: value == null || type.check value;
      merge =
        loc: definitions:
        let
          set = filter (each: each.value != null) definitions;
        in
        if set == [ ] then
          null
        else if length set == length definitions then
          type.merge loc definitions
        else
          throw "The option `${showOption loc}' is defined both null and not null:${showDefinitions definitions}";
      inherit (type) getSubOptions;
    };

  either =
    left: right:
    makeType {
      name = "either";
      description = "${inBrackets left} or ${inBrackets right}";
      check = value: left.check value || right.check value;
      merge =
        loc: definitions:
        if all left.check (values definitions) then
          left.merge loc definitions
        else if all right.check (values definitions) then
          right.merge loc definitions
        else
          mergeOne loc definitions;
    };

  oneOf = types: foldl' either (head types) (tail types);

  addCheck = type: extra: type // { check = value: type.check value && extra value; };

  listOf =
    element:
    makeType {
      name = "listOf";
      description = "list of ${ofWhat element}";
      composite = true;
      check = isList;
      merge =
        loc: definitions:
        let
          items = concatMap (each: map (value: { inherit (each) file; inherit value; }) each.value) definitions;
          evaluated = map (each: lib.evalDefinitions (loc ++ [ "*" ]) element [ each ]) items;
        in
        map (each: each.value) (filter (each: each.isDefined) evaluated);
      getSubOptions = prefix: element.getSubOptions (prefix ++ [ "*" ]);
    };

  attrsOf =
    element:
    makeType {
      name = "attrsOf";
      description = "attribute set of ${ofWhat element}";
      composite = true;
      check = isAttrs;
      merge = mergeAttrs element;
      getSubOptions = prefix: element.getSubOptions (prefix ++ [ "<name>" ]);
    };

  submodule =
    module:
    let
      evaluate =
        prefix: name: definitions:
        lib.evalModules {
          inherit prefix;
          modules = [
            module
            { config._module.args.name = name; }
          ]
          ++ map (each: {
            _file = each.file;
            config = each.value;
          }) definitions;
        };
    in
    makeType {
      name = "submodule";
      composite = true;
      check = isAttrs;
      merge = loc: definitions: (evaluate loc (builtins.elemAt loc (length loc - 1)) definitions).config;
      getSubOptions = prefix: (evaluate prefix "<name>" [ ]).options;
    };
}
