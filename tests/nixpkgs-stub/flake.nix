{
  description = "Stand-in for nixpkgs, of our own making; README.md says what it proves and what it does not";

  outputs =
    { self }:
    {
      lib = import ./lib;
    };
}
