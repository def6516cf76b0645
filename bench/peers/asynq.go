package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
)

// work is the payload of a task.
type work struct {
	Number  int    `json:"number"`
	Payload string `json:"payload"`
}

const (
	taskKind = "bench:noop"
	queue    = "default"
)

// asynqOn is Asynq on a Redis of its own. sync is how Redis persists.
type asynqOn struct {
	sync    string // "off", or a value of appendfsync
	dir     string
	workers int
	starts  *starts

	redis     *server
	server    *asynq.Server
	client    *asynq.Client
	inspector *asynq.Inspector
}

func (a *asynqOn) name() string { return asynqName(a.sync) }

func asynqName(sync string) string {
	if sync == "off" {
		return "asynq, redis without persistence"
	}
	return "asynq, redis appendfsync " + sync
}

func (a *asynqOn) open(ctx context.Context) error {
	program, err := find("redis-server")
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	args := []string{"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", a.dir, "--save", "", "--appendonly", "no"}
	if a.sync != "off" {
		args = append(args[:len(args)-1], "yes", "--appendfsync", a.sync)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	if a.redis, err = startServer(ctx, dial(address), nil, program, args...); err != nil {
		return err
	}
	opt := asynq.RedisClientOpt{Addr: address, PoolSize: a.workers}
	a.client, a.inspector = asynq.NewClient(opt), asynq.NewInspector(opt)
	a.server = asynq.NewServer(opt, asynq.Config{
		Concurrency: a.workers, LogLevel: asynq.ErrorLevel, TaskCheckInterval: 5 * time.Millisecond,
	})
	mux := asynq.NewServeMux()
	mux.HandleFunc(taskKind, func(_ context.Context, t *asynq.Task) error {
		var w work
		if err := json.Unmarshal(t.Payload(), &w); err != nil {
			return err
		}
		a.starts.ran(w.Number)
		_, err := t.ResultWriter().Write([]byte(`{"ok":true}`))
		return err
	})
	return a.server.Start(mux)
}

func (a *asynqOn) submit(ctx context.Context, number int, payload string) error {
	body, err := json.Marshal(work{number, payload})
	if err != nil {
		return err
	}
	_, err = a.client.EnqueueContext(ctx, asynq.NewTask(taskKind, body), asynq.Retention(time.Hour))
	return err
}

func (a *asynqOn) completed(context.Context) (int, error) {
	info, err := a.inspector.GetQueueInfo(queue)
	if err != nil || info == nil {
		return 0, nil // there is no queue before the first task
	}
	return info.Completed, nil
}

func (a *asynqOn) close() {
	if a.server != nil {
		a.server.Shutdown()
		_ = a.client.Close()
		_ = a.inspector.Close()
	}
	a.redis.stop()
}
