//! `cargo bench -p bench`: the engine's mean time for a hit, by criterion.

use std::error::Error;
use std::sync::Arc;

use bench::criterion_means::GROUP;
use bench::image::Image;
use bench::scenario::{PLANS, Probed, Scenario};
use bench::sinks::Nobody;
use criterion::Criterion;

fn main() -> Result<(), Box<dyn Error>> {
    let mut criterion = Criterion::default().without_plots().configure_from_args();
    let kernel = lab::ensure_kernels()?.v6_1;
    let image = Image::read(&kernel.vmlinuz)?;
    let mut group = criterion.benchmark_group(GROUP);
    for plan in PLANS {
        let mut scenario = Scenario::new(&image, plan, Arc::new(Nobody))?;
        group.bench_function(plan.name, |bencher| match plan.probed {
            Probed::Return => bencher.iter(|| {
                let entered = scenario.prepare_call().map(|()| scenario.hit());
                let returned = scenario.prepare_return().map(|()| scenario.hit());
                (entered.is_ok(), returned.is_ok())
            }),
            _ => bencher.iter(|| {
                scenario.prepare();
                scenario.hit()
            }),
        });
    }
    group.finish();
    criterion.final_summary();
    Ok(())
}
