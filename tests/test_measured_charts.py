"""Charts of measured runs show each run where it belongs."""

import pytest

from measured_samples import predicted, refused
from shardwise import InputError
from shardwise.report.charts.measured import against_measured, charts, error_histogram, write_charts
from shardwise.validate.measured.predict import Prediction
