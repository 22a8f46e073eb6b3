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

/// A suffix, and what it stands for: a power of 2 times a power of 10.
struct Unit {
    suffix: &'static str,
    twos: u32,
    tens: i32,
}

const fn binary(suffix: &'static str, twos: u32) -> Unit {
    Unit {
        suffix,
        twos,
        tens: 0,
    }
}

const fn decimal(suffix: &'static str, tens: i32) -> Unit {
    Unit {
        suffix,
        twos: 0,
        tens,
    }
}

/// Every unit of Kubernetes' notation, the largest first in each family, so that the shortest exact form is found first.
const UNITS: [Unit; 16] = [
    binary("Ei", 60),
    binary("Pi", 50),
    binary("Ti", 40),
    binary("Gi", 30),
    binary("Mi", 20),
    binary("Ki", 10),
    decimal("E", 18),
    decimal("P", 15),
    decimal("T", 12),
    decimal("G", 9),
    decimal("M", 6),
    decimal("k", 3),
    decimal("", 0),
    decimal("m", -3),
    decimal("u", -6),
    decimal("n", -9),
];

/// More digits than these can't change a number by as much as Kubernetes keeps of it.
const FRACTION_DIGITS_MAX: usize = 18;
/// Kubernetes keeps billionths.
const KEPT_TENS: i32 = 9;
pub(crate) const BILLION: u128 = 1_000_000_000;
/// Nobody counts bytes in these.
const PARTS: [&str; 3] = ["m", "u", "n"];

/// A number in Kubernetes' notation.
pub(crate) struct Number {
    /// In billionths, of which a part is rounded up as Kubernetes does; none where that is more than 128 bits.
    pub(crate) billionths: Option<u128>,
    pub(crate) suffix: &'static str,
}

impl Number {
    /// None if it isn't digits, with some behind a point or not, and a suffix that is known.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
        let unit = UNITS.iter().find(|unit| unit.suffix == suffix)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !is_digits(whole) || !is_digits(fraction) || fraction.len() > FRACTION_DIGITS_MAX {
            return None;
        }
        let tens = unit.tens + KEPT_TENS - i32::try_from(fraction.len()).ok()?;
        let power = 10_u128.checked_pow(tens.unsigned_abs())?;
        let digits: Option<u128> = format!("{whole}{fraction}").parse().ok();
        let digits = digits.and_then(|digits| digits.checked_mul(1 << unit.twos));
        Some(Self {
            billionths: digits.and_then(|digits| match tens {
                0.. => digits.checked_mul(power),
                _ => Some(digits.div_ceil(power)),
            }),
            suffix: unit.suffix,
        })
    }
}

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
        let number = Number::read(text).filter(|number| !PARTS.contains(&number.suffix));
        let number = number.ok_or_else(|| QuantityError::Malformed { text: text.into() })?;
        let bytes = number.billionths.map(|amount| amount.div_ceil(BILLION));
        let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| QuantityError::TooLarge { text: text.into() })?;
        Ok(Self { bytes })
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sizes = UNITS.iter().filter_map(|unit| {
            let size = 10_u64.checked_pow(u32::try_from(unit.tens).ok()?)? << unit.twos;
            Some((unit.suffix, size))
        });
        let exact = sizes.find(|(_, size)| self.bytes > 0 && self.bytes.is_multiple_of(*size));
        let (suffix, size) = exact.unwrap_or(("", 1));
        write!(f, "{}{suffix}", self.bytes / size)
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
            ("1.000000000000000001Ei", (1 << 60) + 2),
            ("15.999999999999999998Ei", u64::MAX - 1),
            ("18446744073709551614.999999999999999999", u64::MAX),
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
            "500m",
            "1n",
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
