//! Revisions of the pods' templates: pure. A cluster keeps the one by which its pods were made, so that a new operator restarts
//! no pod. It takes the newest with its next image, or the one that its spec asks for (`docs/design/operator.md`).

use percolator_api::{ClusterObject, Problem, Templates};
use semver::Version;

use super::build::{Settings, default_image};
use super::names::Role;
use super::observed::Observed;

/// Templates, by what makes them differ from those before.
struct Revision {
    /// The oldest servers that know all that is in them, as major, minor and patch.
    servers: [u64; 3],
}

/// All revisions of this operator: the first is revision 1, and the last the newest.
const REVISIONS: [Revision; 4] = [
    Revision { servers: [0, 1, 0] },
    // Tablet servers move their tablets off before they stop.
    Revision { servers: [0, 1, 0] },
    // Proxies know each other.
    Revision { servers: [0, 1, 0] },
    // Proxies are probed where they show metrics.
    Revision { servers: [0, 1, 0] },
];
/// The revision of clusters without a record.
pub(crate) const FIRST: u32 = 1;
/// From here on, tablet servers move their tablets off before they stop.
pub(crate) const DRAIN_ON_STOP: u32 = 2;
/// From here on, a client of one proxy may join a transaction of another one.
pub(crate) const PROXY_PEERS: u32 = 3;
/// From here on, clients that take all connections of a proxy are not in the way of its probes.
pub(crate) const PROXY_PROBES: u32 = 4;
pub(crate) const NEWEST: u32 = REVISIONS.len() as u32;

/// The revision that the cluster's pods are made by.
pub(crate) fn of(cluster: &ClusterObject, observed: &Observed, settings: &Settings) -> u32 {
    let image = image(cluster, settings);
    let recorded = cluster.status.as_ref().map(|it| it.templates.as_ref());
    match (cluster.spec.template_revision, recorded) {
        (Some(asked), _) => asked,
        (None, None) => newest_for(&REVISIONS, image),
        // Made by an operator that knew of one alone.
        (None, Some(None)) if observed.own_set(cluster, Role::Tablet).is_some() => FIRST,
        (None, Some(None)) => newest_for(&REVISIONS, image),
        (None, Some(Some(templates))) if templates.image == image => templates.revision,
        (None, Some(Some(_))) => newest_for(&REVISIONS, image),
    }
}

/// Why the pods that are there stay as they are: they are made by templates that this operator doesn't know, as after one that was
/// newer. Its own would restart them without a request.
pub(crate) fn of_newer_operator(
    cluster: &ClusterObject,
    observed: &Observed,
    settings: &Settings,
) -> Option<String> {
    let revision = of(cluster, observed, settings);
    let asked = cluster.spec.template_revision;
    (revision > NEWEST && asked.is_none()).then(|| {
        format!(
            "a newer operator made the pods, by templateRevision {revision}, and this one knows {FIRST} to {NEWEST}: it leaves them as \
             they are; go back to the newer operator, or set spec.templateRevision to one of these, which restarts them"
        )
    })
}

/// The record of the status, while the spec is valid.
pub(crate) fn record(
    cluster: &ClusterObject,
    observed: &Observed,
    settings: &Settings,
) -> Templates {
    Templates {
        revision: of(cluster, observed, settings),
        image: image(cluster, settings).to_owned(),
    }
}

/// The problem of the revision that the spec asks for.
pub(crate) fn problem(cluster: &ClusterObject) -> Option<Problem> {
    let asked = cluster.spec.template_revision?;
    let message = if !(FIRST..=NEWEST).contains(&asked) {
        format!(
            "{asked} must be {FIRST} to {NEWEST}, which are those of this operator: take one of them, or a newer operator"
        )
    } else {
        let image = cluster.spec.image.as_deref()?;
        let newest = newest_for(&REVISIONS, image);
        if asked <= newest {
            return None;
        }
        format!("{asked} must be at most {newest} with {image}: its servers are too old for it")
    };
    Some(Problem {
        path: "spec.templateRevision".to_owned(),
        line: None,
        message,
    })
}

fn image<'a>(cluster: &'a ClusterObject, settings: &'a Settings) -> &'a str {
    let asked = cluster.spec.image.as_deref();
    asked.unwrap_or_else(|| default_image(cluster, settings))
}

/// The newest revision whose templates the image's servers know. With a tag that is no version, the newest of all.
fn newest_for(revisions: &[Revision], image: &str) -> u32 {
    let servers = version(image);
    let fit = |revision: &&Revision| servers.as_ref().is_none_or(|it| *it >= revision.servers);
    // None fits servers that are older than the first one: that is what there is.
    let fitting = revisions.iter().take_while(fit).count().max(1);
    u32::try_from(fitting).unwrap_or(FIRST)
}

/// The version in the image's tag, as in `registry:5000/percolator:v1.2.3-debug@sha256:...`.
fn version(image: &str) -> Option<[u64; 3]> {
    let (named, _) = image.split_once('@').unwrap_or((image, ""));
    let name = named.rsplit('/').next()?;
    let (_, tag) = name.split_once(':')?;
    let version = Version::parse(tag.trim_start_matches('v')).ok()?;
    // Builds of a version that have more in their tags know as much.
    Some([version.major, version.minor, version.patch])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_get_templates_that_they_know() {
        let revisions = [1, 1, 2].map(|minor| Revision {
            servers: [0, minor, 0],
        });
        for (image, newest) in [
            ("percolator:0.1.0", 2),
            ("registry:5000/percolator:v0.1.9-debug", 2),
            ("percolator:0.2.0-rc.1", 3),
            ("percolator:0.2.0@sha256:00", 3),
            ("percolator:latest", 3),
            ("registry:5000/percolator", 3),
            ("percolator@sha256:00", 3),
            ("percolator:0.0.1", 1),
        ] {
            assert_eq!(newest_for(&revisions, image), newest, "{image}");
        }
    }

    /// Later ones add to what those before ask for.
    #[test]
    fn newer_revisions_need_newer_servers() {
        assert!(REVISIONS.is_sorted_by(|a, b| a.servers <= b.servers));
        let ours = version(concat!("percolator:", env!("CARGO_PKG_VERSION"))).expect("a version");
        assert!(REVISIONS.iter().all(|it| it.servers <= ours));
    }
}
