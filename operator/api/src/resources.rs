//! What a server's container asks for and may not exceed: amounts, each role's defaults, and what is too little.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::quantity::{BILLION, Number};
use crate::{Master, Oracle, Proxy, Quantity, Tablets};

/// What a container asks for, and what it may not exceed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// What a node must have free: cpu in cores (500m is half of one), memory in bytes. Default: cpu and memory of
    /// the role, of tablet servers with cacheSize; 0 leaves one out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Amount>,
    /// What the container is held to, in the same units. Default: memory of the role, of tablet servers with
    /// cacheSize, and no cpu; 0 leaves one out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Amount>,
}

/// What a role's server needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Thousandths of a core that it asks for if the manifest says nothing.
    pub cpu_millis: u32,
    /// Memory that it asks for if the manifest says nothing.
    pub request: Quantity,
    /// Memory that it is held to if the manifest says nothing.
    pub limit: Quantity,
    /// The smallest limit of memory with which it can work.
    pub least: Quantity,
}

const fn mebibytes(count: u64) -> Quantity {
    Quantity::from_bytes(count << 20)
}

/// The smallest limit of an oracle's memory.
pub(crate) const ORACLE_LEAST: Quantity = mebibytes(32);
/// The smallest limit of a master's memory.
pub(crate) const MASTER_LEAST: Quantity = mebibytes(64);
/// The smallest limit of a proxy's memory.
pub(crate) const PROXY_LEAST: Quantity = mebibytes(64);
/// What a tablet server needs beside its cache, at the least.
const TABLET_OVERHEAD_LEAST: Quantity = mebibytes(128);
/// What a tablet server with some million rows has beside its cache at rest (docs/kubernetes.md has the figures).
const TABLET_OVERHEAD: u64 = 256 << 20;
/// The most that one had beside its cache, in an import of one transaction.
const TABLET_OVERHEAD_MAX: u64 = 768 << 20;

impl Oracle {
    /// What an oracle needs.
    pub fn needs(&self) -> Needs {
        Needs {
            cpu_millis: 100,
            request: mebibytes(64),
            limit: mebibytes(256),
            least: ORACLE_LEAST,
        }
    }
}

impl Master {
    /// What a master needs.
    pub fn needs(&self) -> Needs {
        Needs {
            cpu_millis: 50,
            request: mebibytes(128),
            limit: mebibytes(512),
            least: MASTER_LEAST,
        }
    }
}

impl Proxy {
    /// What a proxy needs: its defaults let sessions buffer 256 MiB, requests 128 MiB, and scans some more.
    pub fn needs(&self) -> Needs {
        Needs {
            cpu_millis: 100,
            request: mebibytes(128),
            limit: mebibytes(1024),
            least: PROXY_LEAST,
        }
    }
}

impl Tablets {
    /// What a tablet server needs: its cache, and room beside it.
    pub fn needs(&self) -> Needs {
        let cache = self.storage.cache_size.bytes();
        let beside = |overhead: u64| Quantity::from_bytes(cache.saturating_add(overhead));
        Needs {
            cpu_millis: 250,
            request: beside(TABLET_OVERHEAD),
            // The allocator wastes a part of a large cache.
            limit: beside(TABLET_OVERHEAD_MAX.saturating_add(cache / 4)),
            least: beside(TABLET_OVERHEAD_LEAST.bytes()),
        }
    }
}

impl Resources {
    /// These, with the role's defaults in place of what is left out, and without what is 0. A default never
    /// contradicts what is written: a request is at most the limit.
    #[must_use]
    pub fn completed(&self, needs: &Needs) -> Self {
        let mut all = self.clone();
        let number = |amounts: &BTreeMap<String, Amount>, name: &str| {
            amounts.get(name).and_then(Amount::billionths)
        };
        let bytes = |size: Quantity| u128::from(size.bytes()) * BILLION;
        if !all.limits.contains_key(MEMORY) {
            let asked = number(&all.requests, MEMORY).unwrap_or_default();
            let limit = if asked > bytes(needs.limit) {
                all.requests[MEMORY].clone()
            } else {
                Amount(needs.limit.to_string())
            };
            all.limits.insert(MEMORY.to_owned(), limit);
        }
        let cpu = u128::from(needs.cpu_millis) * (BILLION / 1_000);
        for (name, default, text) in [
            (CPU, cpu, format!("{}m", needs.cpu_millis)),
            (MEMORY, bytes(needs.request), needs.request.to_string()),
        ] {
            if all.requests.contains_key(name) {
                continue;
            }
            let limit = number(&all.limits, name).filter(|limit| *limit > 0);
            let request = match limit {
                Some(limit) if limit < default => all.limits[name].clone(),
                _ => Amount(text),
            };
            all.requests.insert(name.to_owned(), request);
        }
        let is_some = |_: &String, amount: &mut Amount| amount.billionths() != Some(0);
        all.requests.retain(is_some);
        all.limits.retain(is_some);
        all
    }

    /// Valid amounts that contradict each other or the needs: the field below `resources`, and a message.
    pub(crate) fn contradictions(&self, needs: &Needs, who: &str) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let least = u128::from(needs.least.bytes()) * BILLION;
        let limit = self.limits.get(MEMORY);
        if let Some(limit) = limit
            && limit.billionths().is_some_and(|it| it > 0 && it < least)
        {
            found.push((
                format!("limits.{MEMORY}"),
                format!(
                    "{limit} is too little for {who}: the smallest limit that fits is {}; with less the kernel \
                     kills the server. Write 0 for no limit",
                    needs.least
                ),
            ));
        }
        for (name, limit) in &self.limits {
            let request = self.requests.get(name);
            let is_more = |request: &&Amount| {
                let (request, limit) = (request.billionths(), limit.billionths());
                limit.is_some_and(|limit| limit > 0 && request.is_some_and(|it| it > limit))
            };
            if let Some(request) = request.filter(is_more) {
                found.push((
                    format!("requests.{name}"),
                    format!("{request} is more than limits.{name}, which is {limit}: ask for no more than that"),
                ));
            }
        }
        found
    }
}

const CPU: &str = "cpu";
const MEMORY: &str = "memory";

/// A rule in CEL about a role: its limit of memory is at least `least`.
pub(crate) fn least_memory(least: Quantity) -> serde_json::Value {
    memory_rule(&format!("quantity('{least}')"), &least.to_string())
}

/// A rule in CEL about tablet servers: their limit of memory leaves room beside the cache.
pub(crate) fn least_memory_with_cache() -> serde_json::Value {
    let beside = TABLET_OVERHEAD_LEAST;
    memory_rule(
        &format!("quantity(string(self.storage.cacheSize)).add(quantity('{beside}'))"),
        &format!("storage.cacheSize + {beside}"),
    )
}

fn memory_rule(least: &str, message: &str) -> serde_json::Value {
    let limit = "quantity(string(self.pod.resources.limits['memory']))";
    serde_json::json!([{
        "rule": format!(
            "!has(self.pod) || !has(self.pod.resources) || !has(self.pod.resources.limits) || \
             !('memory' in self.pod.resources.limits) || {limit}.compareTo(quantity('0')) == 0 || {limit}.compareTo({least}) >= 0"
        ),
        "message": format!("pod.resources.limits.memory must be at least {message}, or 0 for none: with less the kernel kills the server"),
        "fieldPath": ".pod.resources.limits",
    }])
}

/// An amount of a resource, in Kubernetes' notation: `2`, `500m`, `1Gi`. It stays as it was written, and is equal to
/// another by what both are: the API server writes `1000m` as `1`, and `1024Mi` as `1Gi`.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Amount(pub String);

impl Amount {
    /// In billionths; none if it isn't an amount, or more than 128 bits.
    fn billionths(&self) -> Option<u128> {
        Number::read(&self.0)?.billionths
    }

    /// Whether a manifest may have it: a number, if need be with m or one of the suffixes of a [`Quantity`], of at most
    /// 2^63 - 1: of more than that the API server makes that.
    pub fn is_valid(&self) -> bool {
        Number::read(&self.0).is_some_and(|number| {
            let most = u128::from(i64::MAX.unsigned_abs()) * BILLION;
            let is_fine = ["u", "n"].contains(&number.suffix);
            !is_fine && number.billionths.is_some_and(|amount| amount <= most)
        })
    }
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        let amount = |text: &str| Number::read(text)?.billionths;
        self.0 == other.0 || amount(&self.0).is_some_and(|it| amount(&other.0) == Some(it))
    }
}

impl Eq for Amount {}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount, such as 2, \"500m\" or \"1Gi\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount, E> {
                Ok(Amount(text.into()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    // The form in which Kubernetes' own schemas describe a quantity.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "minimum": 0,
            "pattern": r"^[0-9]+(\.[0-9]{1,18})?(m|[KMGTPE]i|[kMGTPE])?$",
            "x-kubernetes-int-or-string": true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Amount {
        Amount(text.into())
    }

    fn amounts(amounts: &[(&str, &str)]) -> BTreeMap<String, Amount> {
        let pairs = amounts.iter();
        pairs
            .map(|(name, text)| ((*name).to_owned(), amount(text)))
            .collect()
    }

    #[test]
    fn what_is_left_out_follows_the_cache_and_contradicts_nothing() {
        let mut tablets = Tablets::default();
        let completed = |tablets: &Tablets, requests: &[(&str, &str)], limits: &[(&str, &str)]| {
            let resources = Resources {
                requests: amounts(requests),
                limits: amounts(limits),
            };
            resources.completed(&tablets.needs())
        };
        let none = completed(&tablets, &[], &[]);
        assert_eq!(
            none.requests,
            amounts(&[("cpu", "250m"), ("memory", "512Mi")])
        );
        assert_eq!(none.limits, amounts(&[("memory", "1088Mi")]));
        tablets.storage.cache_size = mebibytes(4096);
        let large = completed(&tablets, &[], &[]);
        assert_eq!(large.requests["memory"], amount("4352Mi"));
        assert_eq!(large.limits["memory"], amount("5888Mi"));
        // What is written stays, and what isn't fits it.
        let asked = completed(&tablets, &[("memory", "8Gi")], &[("cpu", "100m")]);
        assert_eq!(
            asked.requests,
            amounts(&[("cpu", "100m"), ("memory", "8Gi")])
        );
        assert_eq!(asked.limits, amounts(&[("cpu", "100m"), ("memory", "8Gi")]));
        // Nothing at all, for who wants that.
        let zeros = [("cpu", "0"), ("memory", "0")];
        let nothing = completed(&tablets, &zeros, &zeros);
        assert_eq!(nothing, Resources::default());
    }

    #[test]
    fn amounts_are_compared_by_what_they_are() {
        for (written, kept) in [
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1000", "1k"),
            ("0.0001", "100u"),
            ("0.0000000001", "1n"),
            ("x", "x"),
        ] {
            assert_eq!(amount(written), amount(kept));
        }
        for (written, other) in [("1000m", "2"), ("1Gi", "1G"), ("1", "1m"), ("x", "y")] {
            assert_ne!(amount(written), amount(other));
        }
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in ["2", "500m", "1.5", "1Gi", "9223372036854775807"] {
            assert!(amount(text).is_valid(), "{text}");
        }
        for text in [
            "",
            "m",
            "1Kim",
            "1.m",
            "1u",
            "1n",
            "1e3",
            "-1",
            "+1",
            "9223372036854775808",
            "8Ei",
        ] {
            assert!(!amount(text).is_valid(), "{text}");
        }
    }
}
