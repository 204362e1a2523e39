from hypothesis import HealthCheck, settings

# A slow machine is no fault of the code.
settings.register_profile("cachecraft", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cachecraft")
