//! The guide's file is the pipeline.

use my_pipeline::LIMIT;
use wave_rmt_json::{Arena, read, write};

#[test]
fn guide_shows_the_pipeline_as_a_file() {
    let text = write(&LIMIT).unwrap();
    let guide = include_str!("../../pipeline.md");
    assert!(guide.contains(&text), "copy this into the guide:\n{text}");
    assert_eq!(read(&text, &Arena::new()), Ok(LIMIT));
}
