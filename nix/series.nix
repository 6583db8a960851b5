# Reads a folder of patches: only what its `series` lists is applied, in that order, and nothing may lie there unlisted.
{ lib }:
let
  isPatch = name: lib.hasSuffix ".patch" name;

  # Names in the order of the file; blank lines and lines that begin with # are comments.
  listed =
    text:
    builtins.filter (line: line != "" && builtins.substring 0 1 line != "#") (
      builtins.filter builtins.isString (builtins.split "[ \t\r]*\n" "${text}\n")
    );

  occurrences = name: names: builtins.length (builtins.filter (other: other == name) names);
  repeated = names: builtins.filter (name: occurrences name names > 1) names;

  sentence = lib.concatStringsSep ", ";
in
rec {
  # Names of the patches to apply; `text` is the contents of the series, `present` the names of all files beside it.
  select =
    {
      folder,
      text,
      present,
    }:
    let
      names = listed text;
      absent = builtins.filter (name: !(builtins.elem name present)) names;
      unlisted = builtins.filter (name: isPatch name && !(builtins.elem name names)) present;
      misnamed = builtins.filter (name: !(isPatch name)) names;
    in
    if misnamed != [ ] then
      throw "${folder}/series lists ${sentence misnamed}; every line is the name of one file that ends in .patch"
    else if absent != [ ] then
      throw "${folder}/series lists ${sentence absent}, which ${folder} does not have; add the file or remove the line"
    else if unlisted != [ ] then
      throw "${folder} has ${sentence unlisted}, which ${folder}/series does not list; add a line or remove the file"
    else if repeated names != [ ] then
      throw "${folder}/series lists ${builtins.head (repeated names)} more than once; a patch applies once"
    else
      names;

  # The patches of a folder as { name, path }, in order of application.
  read =
    path:
    map
      (name: {
        inherit name;
        path = path + "/${name}";
      })
      (select {
        folder = baseNameOf (dirOf path) + "/" + baseNameOf path;
        text = builtins.readFile (path + "/series");
        present = builtins.attrNames (builtins.readDir path);
      });
}
