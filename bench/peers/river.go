package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverOn is River on a PostgreSQL of its own, with PostgreSQL's own durability.
type riverOn struct {
	dir     string
	workers int
	starts  *starts

	postgres *server
	pool     *pgxpool.Pool
	client   *river.Client[pgx.Tx]
}

const riverName = "river, postgresql"

func (r *riverOn) name() string { return riverName }

// Kind names the jobs for River.
func (work) Kind() string { return taskKind }

type riverWorker struct {
	river.WorkerDefaults[work]
	starts *starts
}

// Work is the job.
func (w *riverWorker) Work(ctx context.Context, job *river.Job[work]) error {
	w.starts.ran(job.Args.Number)
	return river.RecordOutput(ctx, map[string]any{"ok": true})
}

func (r *riverOn) open(ctx context.Context) error {
	initdb, err := find("initdb", "/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return err
	}
	program, err := find("postgres", "/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return err
	}
	cred, err := unprivileged()
	if err != nil {
		return err
	}
	data := filepath.Join(r.dir, "data")
	if cred != nil {
		if err := os.Chown(r.dir, int(cred.Uid), int(cred.Gid)); err != nil {
			return err
		}
	}
	make := exec.CommandContext(ctx, initdb, "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8") //nolint:gosec // the programs of this benchmark
	make.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	if out, err := make.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	url := fmt.Sprintf("postgres://bench@127.0.0.1:%d/postgres?pool_max_conns=32", port)
	ready := func() error {
		ctx, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		c, err := pgx.Connect(ctx, url[:len(url)-len("?pool_max_conns=32")])
		if err != nil {
			return err
		}
		return c.Close(ctx)
	}
	r.postgres, err = startServer(ctx, ready, cred, program, "-D", data, "-p", fmt.Sprint(port), "-k", r.dir,
		"-c", "listen_addresses=127.0.0.1", "-c", "max_connections=100", "-c", "shared_buffers=256MB")
	if err != nil {
		return err
	}
	if r.pool, err = pgxpool.New(ctx, url); err != nil {
		return err
	}
	driver := riverpgxv5.New(r.pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	known := river.NewWorkers()
	river.AddWorker(known, &riverWorker{starts: r.starts})
	r.client, err = river.NewClient(driver, &river.Config{
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: r.workers}},
		Workers:       known,
		FetchCooldown: 5 * time.Millisecond, FetchPollInterval: 50 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	return r.client.Start(context.WithoutCancel(ctx))
}

func (r *riverOn) submit(ctx context.Context, number int, payload string) error {
	_, err := r.client.Insert(ctx, work{number, payload}, nil)
	return err
}

func (r *riverOn) completed(ctx context.Context) (n int, err error) {
	err = r.pool.QueryRow(ctx, `SELECT count(*) FROM river_job WHERE state = 'completed'`).Scan(&n)
	return n, err
}

func (r *riverOn) close() {
	if r.client != nil {
		ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
		defer stop()
		_ = r.client.Stop(ctx)
	}
	if r.pool != nil {
		r.pool.Close()
	}
	r.postgres.stop()
}
