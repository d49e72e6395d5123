"""What every program of ours does: settings, progress, output, cores."""
