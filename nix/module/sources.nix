# Where weights come from: a folder, a name of the pins, or a repository. Pure, builtins only.
{
  # As in nix/pins.json.
  packs,
  # Folder that packs are fetched into.
  folder,
}:
let
  inherit (builtins)
    isAttrs
    isString
    substring
    ;

  isName = source: isString source && substring 0 1 source != "/";

  # { repository; commit; } of something to fetch.
  pinOf = source: if isName source then { inherit (packs.${source}) repository commit; } else source;

  # A commit has a folder of its own, so that a server keeps its weights while those of the next are fetched.
  directory =
    source:
    let
      pin = pinOf source;
    in
    "${folder}/${pin.repository}" + (if pin.commit == null then "" else "@${substring 0 12 pin.commit}");
in
{
  # The folder that `serve` reads.
  pathOf = source: if isName source || (isAttrs source && source ? repository) then directory source else toString source;

  # What a fetch unit needs to know, null for a folder that is there already.
  fetchOf =
    acceptLicence: source:
    if isName source || (isAttrs source && source ? repository) then
      {
        # A name stands for its pinned commit where there is one.
        wanted =
          if isName source then
            source
          else
            source.repository + (if source.commit == null then "" else "@${source.commit}");
        directory = directory source;
        inherit acceptLicence;
      }
    else
      null;
}
