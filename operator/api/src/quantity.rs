//! A number of bytes, written as Kubernetes writes quantities.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes: a plain number, or one with a suffix, such as `256Mi` or `1.5Gi`.
///
/// Ki, Mi, Gi, Ti, Pi and Ei are powers of 1024; k, M, G, T, P and E powers of 1000. A part of a
/// byte is rounded up, as Kubernetes does. Written back, it takes the shortest exact form, so a
/// manifest's `1024Mi` comes back as `1Gi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    bytes: u64,
}

/// Why a text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It is not a number followed by a known suffix.
    #[error(
        "{text:?} is not a quantity: write a number of bytes, if need be with one of the \
         suffixes Ki Mi Gi Ti Pi Ei (powers of 1024) or k M G T P E (powers of 1000), \
         such as \"256Mi\""
    )]
    Malformed {
        /// What was written.
        text: String,
    },
    /// It does not fit 64 bits.
    #[error("{text:?} is more than 2^64 - 1 bytes")]
    TooLarge {
        /// What was written.
        text: String,
    },
}

/// Largest first in each family, so that the shortest exact form is found first.
const SUFFIXES: [(&str, u64); 12] = [
    ("Ei", 1 << 60),
    ("Pi", 1 << 50),
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("E", 1_000_000_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];

/// More digits than these can't change a number of bytes by as much as one.
const FRACTION_DIGITS_MAX: usize = 18;

impl Quantity {
    /// So many bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self { bytes }
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let malformed = || QuantityError::Malformed { text: text.into() };
        let number_len = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(number_len);
        let unit = match suffix {
            "" => 1,
            _ => SUFFIXES
                .iter()
                .find(|(name, _)| *name == suffix)
                .map(|(_, unit)| *unit)
                .ok_or_else(malformed)?,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > FRACTION_DIGITS_MAX {
            return Err(malformed());
        }
        let too_large = || QuantityError::TooLarge { text: text.into() };
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let scale = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| malformed())?);
        let part: u128 = fraction.parse().map_err(|_| malformed())?;
        let bytes =
            u128::from(whole) * u128::from(unit) + (part * u128::from(unit)).div_ceil(scale);
        let bytes = u64::try_from(bytes).map_err(|_| too_large())?;
        Ok(Self { bytes })
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = SUFFIXES
            .iter()
            .find(|(_, unit)| self.bytes > 0 && self.bytes.is_multiple_of(*unit));
        match exact {
            Some((suffix, unit)) => write!(f, "{}{suffix}", self.bytes / unit),
            None => write!(f, "{}", self.bytes),
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity, such as \"256Mi\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Quantity, E> {
                Ok(Quantity::from_bytes(bytes))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    // The form in which Kubernetes' own schemas describe a quantity.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "pattern": r"^[0-9]+(\.[0-9]{1,18})?([KMGTPE]i|[kMGTPE])?$",
            "x-kubernetes-int-or-string": true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suffix_has_its_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("7", 7),
            ("3Ki", 3 << 10),
            ("256Mi", 256 << 20),
            ("10Gi", 10 << 30),
            ("2Ti", 2 << 40),
            ("1Pi", 1 << 50),
            ("1Ei", 1 << 60),
            ("5k", 5_000),
            ("5M", 5_000_000),
            ("5G", 5_000_000_000),
            ("5T", 5_000_000_000_000),
            ("1P", 1_000_000_000_000_000),
            ("1E", 1_000_000_000_000_000_000),
            ("1.5Gi", 3 << 29),
            ("0.1", 1),
            ("0.0001k", 1),
        ] {
            assert_eq!(text.parse(), Ok(Quantity::from_bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in [
            "",
            "Mi",
            "12 Mi",
            "12mi",
            "12MiB",
            "12K",
            "-1",
            "+1",
            "1e3",
            "1.",
            ".5",
            "1.2.3",
            "1.0000000000000000001",
            "٣Mi",
        ] {
            let error = text.parse::<Quantity>().expect_err(text);
            assert_eq!(error, QuantityError::Malformed { text: text.into() });
        }
        for text in ["16Ei", "18446744073709551616", "99999999999999999999999Gi"] {
            let error = text.parse::<Quantity>().expect_err(text);
            assert_eq!(error, QuantityError::TooLarge { text: text.into() });
        }
    }

    #[test]
    fn it_is_written_in_its_shortest_exact_form() {
        for (from, to) in [
            ("1024Mi", "1Gi"),
            ("1000", "1k"),
            ("1001", "1001"),
            ("0", "0"),
            ("1.5Gi", "1536Mi"),
        ] {
            let quantity: Quantity = from.parse().expect(from);
            assert_eq!(quantity.to_string(), to);
        }
    }
}
