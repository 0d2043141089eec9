// Curator is a host that connects to a Foldline sidecar and writes the summaries of its sessions: of those whose policy
// says summary.source CURATOR. It says on standard output what it does, and comes back when the sidecar was away.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "foldline.dev/examples/go/gen/foldline/v1"
)

type labels map[string]string

func (l labels) String() string { return fmt.Sprint(map[string]string(l)) }

func (l labels) Set(pair string) error {
	key, value, _ := strings.Cut(pair, "=")
	l[key] = value
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	wanted := labels{}
	target := flag.String("target", "127.0.0.1:7420", "host:port, or unix:///path")
	name := flag.String("name", "go", "what the sidecar's log calls it")
	tasks := flag.Int("tasks", 4, "tasks at once")
	delay := flag.Duration("delay", 0, "how long a summary takes")
	flag.Var(wanted, "label", "a session must have it: KEY=VALUE, repeatable")
	flag.Parse()
	register := &pb.CuratorRegister{
		Role: pb.CuratorRole_CURATOR_ROLE_CURATOR, Name: *name, Labels: wanted, MaxTasks: int32(*tasks),
	}
	often := backoff.DefaultConfig
	often.MaxDelay = 2 * time.Second
	connection, err := grpc.NewClient(
		*target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: often, MinConnectTimeout: 5 * time.Second}),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	defer connection.Close()
	client := pb.NewCuratorServiceClient(connection)
	for ctx.Err() == nil {
		if err := serve(ctx, client, register, *delay); err != nil && !comesBack(err) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func comesBack(err error) bool {
	code := status.Code(err)
	if code == codes.Unavailable || code == codes.ResourceExhausted {
		fmt.Println("away", code)
		return true
	}
	return code == codes.Canceled
}

// serve opens a stream and works for as long as it lives. One goroutine, this one, owns tasks and what is sent: grpc
// allows one sender at a time.
func serve(ctx context.Context, client pb.CuratorServiceClient, register *pb.CuratorRegister, delay time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Curate(ctx)
	if err != nil {
		return err
	}
	sequence := uint64(0)
	send := func(message *pb.CurateRequest) error {
		sequence++
		message.Sequence = sequence
		if err := stream.Send(message); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return nil // After io.EOF the reason comes with the next message that is received.
	}
	if err := send(&pb.CurateRequest{Kind: &pb.CurateRequest_Register{Register: register}}); err != nil {
		return err
	}
	heard, failed := receive(ctx, stream)
	written := make(chan *pb.CuratorResult)
	held := map[string]*pb.CuratorTask{}
	var beat <-chan time.Time
	begin := func(task *pb.CuratorTask) {
		go func() {
			result := write(ctx, task, delay)
			select {
			case written <- result:
			case <-ctx.Done():
			}
		}()
	}
	for {
		select {
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-beat:
			ids := make([]string, 0, len(held))
			for id := range held {
				ids = append(ids, id)
			}
			message := &pb.CuratorHeartbeat{TaskIds: ids}
			if err := send(&pb.CurateRequest{Kind: &pb.CurateRequest_Heartbeat{Heartbeat: message}}); err != nil {
				return err
			}
		case result := <-written:
			if held[result.TaskId] == nil {
				continue
			}
			delete(held, result.TaskId)
			if err := send(&pb.CurateRequest{Kind: &pb.CurateRequest_Result{Result: result}}); err != nil {
				return err
			}
			fmt.Println("answered", result.TaskId)
		case message := <-heard:
			switch kind := message.Kind.(type) {
			case *pb.CurateResponse_Registered:
				fmt.Println("connected", kind.Registered.CuratorId)
				ticker := time.NewTicker(kind.Registered.HeartbeatInterval.AsDuration() / 3)
				defer ticker.Stop()
				beat = ticker.C
			case *pb.CurateResponse_Task:
				fmt.Println("task", kind.Task.TaskId, kind.Task.SessionId)
				held[kind.Task.TaskId] = kind.Task
				if !kind.Task.MoreRows {
					begin(kind.Task)
				}
			case *pb.CurateResponse_Rows:
				if task := held[kind.Rows.TaskId]; task != nil {
					task.Rows = append(task.Rows, kind.Rows.Rows...)
					if !kind.Rows.MoreRows {
						begin(task)
					}
				}
			case *pb.CurateResponse_Cancel:
				fmt.Println("cancelled", kind.Cancel.TaskId, kind.Cancel.Reason)
				delete(held, kind.Cancel.TaskId)
			}
		}
	}
}

// receive reads a stream to its end on a goroutine of its own.
func receive(ctx context.Context, stream pb.CuratorService_CurateClient) (<-chan *pb.CurateResponse, <-chan error) {
	heard, failed := make(chan *pb.CurateResponse), make(chan error, 1)
	go func() {
		for {
			message, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case heard <- message:
			case <-ctx.Done():
				return
			}
		}
	}()
	return heard, failed
}

func write(ctx context.Context, task *pb.CuratorTask, delay time.Duration) *pb.CuratorResult {
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
	text := &pb.CuratorSummary{Text: summary(task)}
	return &pb.CuratorResult{TaskId: task.TaskId, Kind: &pb.CuratorResult_Summary{Summary: text}}
}
