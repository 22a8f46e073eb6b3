//! Every dependency's licence is one of a short list. The list has what users of an Apache-2.0 project
//! expect: nothing that asks for more than notices.

use std::collections::BTreeMap;

use anyhow::bail;
use spdx::{Expression, Licensee, ParseMode};

use crate::{context::Context, metadata::Package};

/// Of a choice of licences, the first one that is on the list counts.
const ALLOWED: [&str; 13] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "MIT",
    "BSD-3-Clause",
    "BSD-2-Clause",
    "ISC",
    "Zlib",
    "BSL-1.0",
    "Unicode-3.0",
    "0BSD",
    "CC0-1.0",
    "Unlicense",
    // A list of certificates, as data.
    "CDLA-Permissive-2.0",
];

pub(crate) fn run(context: &Context) -> anyhow::Result<String> {
    let packages = &context.metadata()?.packages;
    let mut used = BTreeMap::<String, u64>::new();
    let mut refused = Vec::new();
    for package in packages.iter().filter(|package| !package.is_member()) {
        match licences(package) {
            Ok(licences) => *used.entry(licences).or_default() += 1,
            Err(why) => refused.push(format!("{} {}: {why}", package.name, package.version)),
        }
    }
    for (licences, count) in &used {
        println!("{count:4} under {licences}");
    }
    if !refused.is_empty() {
        bail!("dependencies that we can't use:\n{}", refused.join("\n"));
    }
    Ok(format!("{} dependencies", used.values().sum::<u64>()))
}

fn licences(package: &Package) -> Result<String, String> {
    let text = package.licence.as_deref();
    let text = text.ok_or("it names no licence")?;
    choose(text)
}

/// The licences to use something under that is offered under this expression.
fn choose(text: &str) -> Result<String, String> {
    // `/` is how Cargo once wrote OR.
    let mode = ParseMode {
        allow_slash_as_or_operator: true,
        ..ParseMode::STRICT
    };
    let offered = Expression::parse_mode(text, mode).map_err(|error| error.to_string())?;
    let allowed = ALLOWED.map(Licensee::parse).into_iter().flatten();
    let taken = offered.minimized_requirements(&allowed.collect::<Vec<_>>());
    let taken = taken.map_err(|_| format!("{text} is not on the list"))?;
    let names: Vec<String> = taken.iter().map(ToString::to_string).collect();
    Ok(names.join(" AND "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_choice_the_first_of_the_list_is_taken() {
        for (offered, taken) in [
            ("MIT", "MIT"),
            ("MIT/Apache-2.0", "Apache-2.0"),
            ("GPL-3.0-only OR MIT", "MIT"),
            (
                "(MIT OR Apache-2.0) AND Unicode-3.0",
                "Apache-2.0 AND Unicode-3.0",
            ),
            ("MIT OR BSD-3-Clause AND GPL-2.0-only", "MIT"),
            (
                "Apache-2.0 WITH LLVM-exception",
                "Apache-2.0 WITH LLVM-exception",
            ),
        ] {
            assert_eq!(choose(offered).as_deref(), Ok(taken), "{offered}");
        }
    }

    #[test]
    fn what_is_not_on_the_list_is_refused() {
        for offered in ["GPL-3.0-only", "MIT AND GPL-2.0-only", "MIT OR", "", "Ours"] {
            assert!(choose(offered).is_err(), "{offered:?}");
        }
        assert!(ALLOWED.iter().all(|it| Licensee::parse(it).is_ok()));
    }
}
