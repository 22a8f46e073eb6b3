//! A length of time, written as `3s`, `500ms` or `1m30s`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A length of time in whole milliseconds: numbers with the units h, m, s and ms, largest first
/// and each at most once, such as `3s`, `500ms` or `1m30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration {
    millis: u64,
}

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// It is not a row of numbers with known units.
    #[error(
        "{text:?} is not a duration: write whole numbers with the units h, m, s and ms, \
         largest first, such as \"3s\", \"500ms\" or \"1m30s\""
    )]
    Malformed {
        /// What was written.
        text: String,
    },
    /// It does not fit 64 bits.
    #[error("{text:?} is more than 2^64 - 1 milliseconds")]
    TooLarge {
        /// What was written.
        text: String,
    },
}

/// In the order in which they may stand.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl Duration {
    /// So many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self { millis }
    }

    /// The number of milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.millis
    }
}

impl From<Duration> for std::time::Duration {
    fn from(duration: Duration) -> Self {
        Self::from_millis(duration.millis)
    }
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let malformed = || DurationError::Malformed { text: text.into() };
        let too_large = || DurationError::TooLarge { text: text.into() };
        let mut rest = text;
        let mut units = UNITS.as_slice();
        let mut millis = 0u64;
        while !rest.is_empty() || units.len() == UNITS.len() {
            let number_len = rest
                .find(|c: char| !c.is_ascii_digit())
                .filter(|len| *len > 0)
                .ok_or_else(malformed)?;
            let (number, tail) = rest.split_at(number_len);
            let unit_len = tail
                .find(|c: char| !c.is_ascii_alphabetic())
                .unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_len);
            let at = units
                .iter()
                .position(|(name, _)| *name == unit)
                .ok_or_else(malformed)?;
            let number: u64 = number.parse().map_err(|_| too_large())?;
            millis = number
                .checked_mul(units[at].1)
                .and_then(|part| millis.checked_add(part))
                .ok_or_else(too_large)?;
            units = &units[at + 1..];
            rest = tail;
        }
        Ok(Self { millis })
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.millis;
        for (name, unit) in UNITS {
            if rest >= unit {
                write!(f, "{}{name}", rest / unit)?;
                rest %= unit;
            }
        }
        if self.millis == 0 {
            f.write_str("0s")?;
        }
        Ok(())
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Duration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration with its unit, such as \"3s\" or \"500ms\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            // So many digits of any unit are a number of milliseconds that fits.
            "pattern": "^([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?([0-9]{1,9}ms)?$",
            "minLength": 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_counts() {
        for (text, millis) in [
            ("0s", 0),
            ("500ms", 500),
            ("3s", 3_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1m30s", 90_000),
            ("1h2m3s4ms", 3_723_004),
        ] {
            assert_eq!(text.parse(), Ok(Duration::from_millis(millis)), "{text}");
            assert_eq!(Duration::from_millis(millis).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in [
            "", "3", "s", "3 s", "3s1m", "3s3s", "1.5s", "-3s", "3sec", "3d", "3s ", "3m4",
        ] {
            let error = text.parse::<Duration>().expect_err(text);
            assert_eq!(error, DurationError::Malformed { text: text.into() });
        }
        for text in ["18446744073709551616ms", "18446744073709551615s"] {
            let error = text.parse::<Duration>().expect_err(text);
            assert_eq!(error, DurationError::TooLarge { text: text.into() });
        }
    }
}
