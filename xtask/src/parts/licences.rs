//! Every dependency's licence is one of a short list. The list has what users of an Apache-2.0 project
//! expect: nothing that asks for more than notices.

use std::collections::BTreeMap;

use anyhow::bail;

use crate::{context::Context, metadata::Package, spdx::Expression};

/// Where there's a choice, the first that is offered is taken.
const ALLOWED: [&str; 12] = [
    "Apache-2.0",
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
    Expression::parse(text)?
        .choose(&ALLOWED)
        .map(|licences| licences.join(" AND "))
        .ok_or_else(|| format!("{text} is not on the list"))
}
