//! The committed files hold what the fit gives.

use wave_sim::fit::Fit;

#[test]
fn the_committed_files_are_what_the_fit_gives_and_meet_every_row() {
    let fit = Fit::builtin();
    let found = fit.search(|_| ());
    for (row, ours) in fit.rows.iter().zip(&found.rows) {
        assert!(row.residual(*ours).abs() <= 1.0, "{}: {ours}", row.printed.id);
    }
    assert_eq!(fit.differences(&found.values, &|file| file.builtin().to_owned()), []);
}
