//! The committed files hold the values of the fit.

use wave_sim::fit::Fit;
use wave_sim::fit::offload::Offload;

#[test]
fn the_committed_files_match_the_fit_and_meet_every_row() {
    let fit = Fit::builtin();
    let found = fit.search(|_| ());
    for (row, ours) in fit.rows.iter().zip(&found.rows) {
        assert!(row.residual(*ours).abs() <= 1.0, "{}: {ours}", row.printed.id);
    }
    assert_eq!(fit.differences(&found.values, &|file| file.builtin().to_owned()), []);
}

#[test]
fn the_committed_prototype_matches_its_fit_and_meets_its_row() {
    let fit = Offload::builtin();
    let found = fit.search(2);
    assert!(fit.row.residual(found.row).abs() <= 1.0, "{}", found.row);
    let [machine, open] = Offload::builtin_texts();
    assert_eq!(fit.differences(&found, machine, open), []);
}
