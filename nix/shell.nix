# What a contributor needs; `make check` makes its own Python environment.
{
  mkShell,
  python312,
  gnumake,
  shellcheck,
  nixfmt-tree,
  patchelf,
}:
mkShell {
  packages = [
    python312
    gnumake
    shellcheck
    nixfmt-tree
    patchelf
  ];
}
