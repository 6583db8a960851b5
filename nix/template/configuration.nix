{
  # The driver, without which there is neither libcuda nor nvidia-smi. A kernel for the Spark: graham33/nixos-dgx-spark.
  hardware.graphics.enable = true;
  hardware.nvidia.open = true;
  services.xserver.videoDrivers = [ "nvidia" ];

  services.glm53-exl3 = {
    enable = true;
    instances.k2 = {
      # Needs no compilation of vLLM; "fork" is the runtime that the recipe was measured with.
      runtime = "upstream";
      # Downloaded once into /var/lib/glm53-exl3/packs, resumed when interrupted.
      pack = "K2";
      settings.profile = "chat";
    };
  };
}
