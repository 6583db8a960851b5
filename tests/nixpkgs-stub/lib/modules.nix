# A small evaluator of modules: imports, options, config, properties and priorities. Its limits are in README.md.
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
    functionArgs
    head
    isFunction
    length
    listToAttrs
    mapAttrs
    removeAttrs
    typeOf
    ;
  inherit (lib) isOption showDefinitions showOption;

  # Priorities, as in nixpkgs: the lowest wins.
  priorities = {
    force = 50;
    plain = 100;
    default = 1000;
    option = 1500;
  };

  # --- properties ---
  # `value` as a list of values without mkIf and mkMerge, the disabled ones left out.
  discharge =
    value:
    if value._type or null == "merge" then
      concatMap discharge value.contents
    else if value._type or null == "if" then
      if value.condition then discharge value.content else [ ]
    else
      [ value ];

  # `value` as a list of plain attribute sets, with conditions moved to their values: conditions may depend on `config`,
  # names of options may not.
  pushDown =
    value:
    if value._type or null == "merge" then
      concatMap pushDown value.contents
    else if value._type or null == "if" then
      map (mapAttrs (_: mkIf value.condition)) (pushDown value.content)
    else if value._type or null == "override" then
      map (mapAttrs (_: mkOverride value.priority)) (pushDown value.content)
    else
      [ value ];

  # As in nixpkgs, what a priority is given to is not looked at before it has won: a default may not be there.
  withPriority =
    definition:
    map (
      value:
      if value._type or null == "override" then
        {
          inherit (definition) file;
          inherit (value) priority;
          value = value.content;
        }
      else
        {
          inherit (definition) file;
          priority = priorities.plain;
          inherit value;
        }
    ) (discharge definition.value);

  least = foldl' (a: b: if b < a then b else a);

  mkIf = condition: content: {
    _type = "if";
    inherit condition content;
  };

  mkOverride = priority: content: {
    _type = "override";
    inherit priority content;
  };

  # --- one option ---
  # The value of these definitions at `loc`, lazily.
  evalDefinitions =
    loc: type: definitions:
    let
      all' = concatMap withPriority definitions;
      highest = least priorities.option (map (each: each.priority) all');
      winning = filter (each: each.priority == highest) all';
      wrong = filter (each: !type.check each.value) winning;
    in
    {
      isDefined = winning != [ ];
      value =
        if winning == [ ] then
          throw "The option `${showOption loc}' was accessed but has no value defined. Try setting the option."
        else if wrong != [ ] then
          throw "A definition for option `${showOption loc}' is not of type `${type.description}'. Definition values:${showDefinitions wrong}"
        else
          type.merge loc winning;
    };

  evalOption =
    loc: option: definitions:
    let
      type = option.type or lib.types.unspecified;
      default = {
        file = "the default of ${showOption loc}";
        value = mkOverride priorities.option option.default;
      };
      evaluated = evalDefinitions loc type (definitions ++ (if option ? default then [ default ] else [ ]));
    in
    option
    // {
      inherit loc type;
      inherit (evaluated) isDefined;
      value = (option.apply or (value: value)) evaluated.value;
    };

  # --- modules ---
  own = [
    "imports"
    "options"
    "config"
    "_file"
    "key"
    "_class"
  ];

  # A module as { file; imports; options; config; }.
  load =
    arguments: position: module:
    let
      isFile = typeOf module == "path" || typeOf module == "string";
      file = if isFile then toString module else module._file or "<module ${position}>";
      imported = if isFile then import module else module;
      called = if isFunction imported then imported (callArguments file imported arguments) else imported;
      written = called ? options || called ? config;
      unknown = filter (name: !elem name own) (attrNames called);
    in
    if written && unknown != [ ] then
      throw "Module `${file}' has an unsupported attribute `${head unknown}'. Put it below `config'."
    else
      {
        file = called._file or file;
        imports = called.imports or [ ];
        options = called.options or { };
        config = if written then called.config or { } else removeAttrs called own;
      };

  # Each on its own and lazily, since `_module.args` depends on all modules.
  callArguments =
    file: function: arguments:
    arguments.fixed
    // mapAttrs (
      name: _:
      arguments.fixed.${name} or (arguments.given.${name}
        or (throw "Module `${file}' asks for the argument `${name}', which neither specialArgs nor _module.args has.")
      )
    ) (functionArgs function);

  # With everything that is imported, each file once.
  collect =
    arguments: modules:
    let
      step =
        state: item:
        let
          key = if typeOf item.module == "path" then toString item.module else null;
          loaded = load arguments item.position item.module;
          deeper = number (item.position + ".") loaded.imports;
        in
        if key != null && elem key state.seen then
          state
        else
          foldl' step (
            state
            // {
              seen = state.seen ++ (if key == null then [ ] else [ key ]);
              modules = state.modules ++ [ loaded ];
            }
          ) deeper;
      number =
        prefix: items:
        builtins.genList (at: {
          module = builtins.elemAt items at;
          position = "${prefix}${toString (at + 1)}";
        }) (length items);
    in
    (foldl' step {
      seen = [ ];
      modules = [ ];
    } (number "" modules)).modules;

  # Declarations as one tree. Nixpkgs merges two declarations of one option where it can; here that is refused.
  mergeDeclarations =
    loc: trees:
    listToAttrs (
      map (name: {
        inherit name;
        value =
          let
            here = loc ++ [ name ];
            found = map (tree: tree.${name}) (filter (tree: tree ? ${name}) trees);
          in
          if all (each: !isOption each) found then
            mergeDeclarations here found
          else if length found == 1 then
            head found
          else
            throw "The option `${showOption here}' is declared ${toString (length found)} times.";
      }) (attrNames (foldl' (union: tree: union // tree) { } trees))
    );

  # Options with their values, and definitions of what is no option.
  mergeTree =
    loc: options: configs:
    let
      pushed = concatMap (
        each:
        map (value: {
          inherit (each) file;
          inherit value;
        }) (pushDown each.value)
      ) configs;
      of =
        name:
        map (each: {
          inherit (each) file;
          value = each.value.${name};
        }) (filter (each: each.value ? ${name}) pushed);
      results = mapAttrs (
        name: option:
        let
          here = loc ++ [ name ];
        in
        if isOption option then
          {
            options = evalOption here option (of name);
            unmatched = [ ];
          }
        else
          mergeTree here option (of name)
      ) options;
      strays = filter (name: !(options ? ${name})) (attrNames (foldl' (union: each: union // each.value) { } pushed));
    in
    {
      options = mapAttrs (_: each: each.options) results;
      unmatched =
        map (name: {
          loc = loc ++ [ name ];
          definitions = of name;
        }) strays
        ++ concatMap (name: results.${name}.unmatched) (attrNames results);
    };

  valuesOf = mapAttrs (_: each: if isOption each then each.value else valuesOf each);

  stray =
    each:
    "The option `${showOption each.loc}' does not exist. Definition values:${showDefinitions each.definitions}";
in
{
  inherit evalDefinitions mkIf mkOverride;

  mkMerge = contents: {
    _type = "merge";
    inherit contents;
  };
  mkForce = mkOverride priorities.force;
  mkDefault = mkOverride priorities.default;

  # { options; config; } of these modules.
  evalModules =
    {
      modules,
      specialArgs ? { },
      # where the options are, for messages
      prefix ? [ ],
    }:
    let
      arguments = {
        fixed = specialArgs // {
          inherit lib options;
          config = values;
        };
        given = values._module.args;
      };
      ours.options._module.args = lib.mkOption {
        type = lib.types.attrsOf lib.types.raw;
        default = { };
        internal = true;
      };
      loaded = collect arguments ([ ours ] ++ modules);
      tree = mergeTree prefix (mergeDeclarations prefix (map (each: each.options) loaded)) (
        map (each: {
          inherit (each) file;
          value = each.config;
        }) loaded
      );
      inherit (tree) options;
      values = valuesOf options;
    in
    {
      options = removeAttrs options [ "_module" ];
      config =
        if tree.unmatched == [ ] then
          removeAttrs values [ "_module" ]
        else
          throw (concatStringsSep "\n" (map stray tree.unmatched));
    };
}
