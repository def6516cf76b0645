package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/apbus/apbus/task"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := compare(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func compare(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	tasks := flags.Int("tasks", 20_000, "tasks of one run")
	inFlight := flags.Int("in-flight", 256, "tasks under way at once")
	size := flags.Int("size", 512, "bytes of payload")
	router := flags.String("router", "apbus-router", "the router to run Apbus with")
	only := flags.String("only", "", "run only contenders whose name contains this")
	fill := flags.Int("stored", 0, "instead: compare a router that holds this many tasks with an empty one")
	crash := flags.Bool("recovery", false, "instead: kill a worker with 1,000 running tasks")
	mode := flags.String("worker", "", "used by -recovery for the worker it kills: hold or end")
	url := flags.String("url", "", "used with -worker")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *mode != "" {
		return runWorker(ctx, *mode, *url)
	}
	dir, err := os.MkdirTemp("", "apbus-peers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL runs as somebody else
		return err
	}
	l := load{tasks: *tasks, inFlight: *inFlight, payload: strings.Repeat("x", *size)}
	if *fill > 0 || *crash {
		d, err := os.MkdirTemp(dir, "apbus-")
		if err == nil && *fill > 0 {
			err = stored(ctx, d, *router, *fill, l.payload)
		} else if err == nil {
			err = recovery(ctx, d, *router, l.payload)
		}
		return err
	}
	fmt.Printf("%d tasks, %d in flight, %d bytes, %d processors\n", l.tasks, l.inFlight, *size, runtime.GOMAXPROCS(0))
	fmt.Printf("%-32s %9s %12s %12s %12s\n", "", "tasks/s", "start p50", "start p99", "alone p50")
	rates := map[string]float64{}
	for _, make := range contenders(dir, *router, *inFlight) {
		s := newStarts()
		c, err := make(s)
		if err != nil {
			return err
		}
		if !strings.Contains(c.name(), *only) {
			continue
		}
		busy, idle, err := measure(ctx, c, s, l)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
		rates[c.name()] = busy.perSecond(l)
		fmt.Printf("%-32s %9.0f %12s %12s %12s\n", c.name(), busy.perSecond(l), round(busy.quantile(0.5)), round(busy.quantile(0.99)), round(idle.quantile(0.5)))
	}
	printRatios(rates)
	return nil
}

// aims are the ratios that the durable design asks for.
var aims = [...]struct {
	name, over string
	least      float64
}{
	{apbusName(task.ProcessSafe), asynqName("off"), 2.5},
	{apbusName(task.PowerSafe), asynqName("always"), 3},
	{apbusName(task.ProcessSafe), riverName, 5},
	{apbusName(task.PowerSafe), riverName, 5},
}

// printRatios compares those that ran.
func printRatios(rates map[string]float64) {
	for _, a := range aims {
		if x, y := rates[a.name], rates[a.over]; x > 0 && y > 0 {
			fmt.Printf("%s / %s: %.1f (aim %.1f)\n", a.name, a.over, x/y, a.least)
		}
	}
}

// measure opens c, warms it up, and runs the load, and then some tasks one at a time.
func measure(ctx context.Context, c contender, s *starts, l load) (busy, idle figures, err error) {
	ctx, stop := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("it takes too long"))
	defer stop()
	defer c.close()
	if err := c.open(ctx); err != nil {
		return busy, idle, fmt.Errorf("open: %w", err)
	}
	warm := load{tasks: max(1, l.tasks/10), inFlight: l.inFlight, payload: l.payload}
	if _, err := run(ctx, c, s, warm, 0); err != nil {
		return busy, idle, fmt.Errorf("warm up: %w", err)
	}
	if busy, err = run(ctx, c, s, l, warm.tasks); err != nil {
		return busy, idle, err
	}
	single := load{tasks: 200, inFlight: 1, payload: l.payload}
	idle, err = run(ctx, c, s, single, warm.tasks+l.tasks)
	return busy, idle, err
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// contenders are all of them, each with a folder of its own below dir.
func contenders(dir, router string, workers int) []func(*starts) (contender, error) {
	folder := func(name string) (string, error) { return os.MkdirTemp(dir, name) }
	onRedis := func(sync string) func(*starts) (contender, error) {
		return func(s *starts) (contender, error) {
			d, err := folder("redis-")
			return &asynqOn{sync: sync, dir: d, workers: workers, starts: s}, err
		}
	}
	onRouter := func(durability string) func(*starts) (contender, error) {
		return func(s *starts) (contender, error) {
			d, err := folder("apbus-")
			return &apbusOn{durability: durability, program: router, dir: d, workers: workers, starts: s}, err
		}
	}
	return []func(*starts) (contender, error){
		onRouter(task.ProcessSafe), onRouter(task.PowerSafe),
		onRedis("off"), onRedis("always"),
		func(s *starts) (contender, error) {
			d, err := folder("river-")
			return &riverOn{dir: d, workers: workers, starts: s}, err
		},
	}
}
