"""Browser tests: a real hub, real kernels, headless Chromium."""
