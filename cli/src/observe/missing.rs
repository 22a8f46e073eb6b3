//! Servers that the manifest has, and that nobody knows. Those that were there and are down are named each.

use super::problems::Problem;
use super::survey::Survey;

pub(super) fn find(survey: &Survey) -> Vec<Problem> {
    let mut found = Vec::new();
    let joined = survey
        .servers
        .iter()
        .filter(|it| it.role == "tablet")
        .count();
    if joined < survey.tablet_servers_expected {
        found.push(Problem {
            kind: "servers-missing",
            about: "tablet servers".into(),
            what: format!(
                "{joined} of the {} tablet servers that the manifest has joined the cluster: a table that is made now lies \
                 on those alone",
                survey.tablet_servers_expected
            ),
            action: "nothing while they start; else see why they don't: the log of `percolator up`, or `kubectl describe \
                     pod` of those that aren't Running"
                .into(),
        });
    }
    found.extend(standby_missing(survey, "master", survey.masters_expected));
    found.extend(standby_missing(survey, "oracle", survey.oracles_expected));
    found
}

fn standby_missing(survey: &Survey, role: &'static str, expected: usize) -> Option<Problem> {
    let known = survey.servers.iter().filter(|it| it.role == role).count();
    let leader = usize::from(role == "master");
    (known + leader < expected).then(|| Problem {
        kind: "standby-missing",
        about: format!("{role}s"),
        what: format!(
            "the manifest has {expected} {role}s, and only {} {} known: if the last one ends, nobody takes over",
            known + leader,
            if known + leader == 1 { "is" } else { "are" },
        ),
        action: format!(
            "nothing while they start; else see why they don't: the log of `percolator up`, or `kubectl describe pod` of the \
             {role}s that aren't Running"
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::problems::find;
    use super::super::problems::tests::{server, well};

    #[test]
    fn a_standby_that_the_manifest_has_and_nobody_knows_is_missing() {
        let mut survey = well();
        (survey.masters_expected, survey.oracles_expected) = (2, 2);
        let found = find(&survey, &BTreeMap::new());
        let found: Vec<_> = found.iter().map(|it| (it.kind, &*it.about)).collect();
        let missing = "standby-missing";
        assert_eq!(found, [(missing, "masters"), (missing, "oracles")]);
        survey.servers.push(server("oracle", "tso-1", 7405));
        let mut master = server("master", "master-1", 7404);
        survey.servers.push(master.clone());
        assert_eq!(find(&survey, &BTreeMap::new()), []);
        // One that is down is reported by its name.
        master.alive = false;
        survey.servers.pop();
        survey.servers.push(master);
        let found = find(&survey, &BTreeMap::new());
        let found: Vec<_> = found.iter().map(|it| (it.kind, &*it.about)).collect();
        assert_eq!(found, [("server-down", "master-1")]);
    }
}
