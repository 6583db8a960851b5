#include "../exl3_moe.cuh"
