// Loop plays an agent of two model calls a task against a Foldline sidecar: the list folds when it must, what was
// folded is found again, and a sidecar that goes away does not stop the agent. It prints one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "foldline.dev/examples/go/gen/foldline/v1"
	"foldline.dev/examples/go/internal/host"
	"foldline.dev/examples/go/internal/scripted"
)

type report struct {
	SessionID    string   `json:"session_id"`
	Requests     int      `json:"requests"`
	Folds        int      `json:"folds"`
	Offline      int      `json:"offline"`
	Replayed     int      `json:"replayed"`
	Reloads      int      `json:"reloads"`
	Compacted    string   `json:"compacted"`
	Search       search   `json:"search"`
	Verified     bool     `json:"verified"`
	RowsTotal    int64    `json:"rows_total"`
	RowsActive   int64    `json:"rows_active"`
	Revision     uint64   `json:"revision"`
	ReplicaEqual bool     `json:"replica_equal"`
	Error        *refusal `json:"error,omitempty"`
}

type search struct {
	Query  string `json:"query"`
	Found  bool   `json:"found"`
	Offset uint64 `json:"offset"`
}

type refusal struct {
	Reason   string            `json:"reason"`
	Metadata map[string]string `json:"metadata"`
	Message  string            `json:"message"`
}

type flags struct {
	host.Options
	steps    int
	patience time.Duration
	pace     time.Duration
	dump     string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	given := parse()
	agent, err := host.New(given.Options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	defer agent.Close()
	made := &report{SessionID: given.SessionID}
	err = play(ctx, agent, given, made)
	if err != nil {
		info := host.Info(err)
		made.Error = &refusal{Reason: info.GetReason(), Metadata: info.GetMetadata(), Message: err.Error()}
	}
	line, _ := json.Marshal(made)
	fmt.Println(string(line))
	if err != nil || !made.Verified || !made.ReplicaEqual {
		os.Exit(1)
	}
}

func parse() flags {
	var f flags
	var threshold int64
	flag.StringVar(&f.Target, "target", "127.0.0.1:7420", "host:port, or unix:///path")
	flag.StringVar(&f.SessionID, "session", fmt.Sprintf("go-%d", time.Now().UnixNano()), "id of the session to create")
	flag.IntVar(&f.steps, "steps", 40, "model calls to make")
	flag.Int64Var(&threshold, "threshold", 4000, "tokens at which the list folds")
	flag.DurationVar(&f.Deadline, "deadline", 10*time.Second, "of each call to the sidecar")
	flag.DurationVar(&f.patience, "patience", time.Minute, "how long to wait at the end for a sidecar that is away")
	flag.DurationVar(&f.pace, "pace", 0, "how long the model takes to answer")
	flag.StringVar(&f.dump, "dump", "", "write what was appended, and the list as held, to this file")
	flag.Parse()
	f.Model = scripted.Model
	f.Policy = &pb.Policy{AutoCompactThreshold: &threshold}
	return f
}

func play(ctx context.Context, agent *host.Host, given flags, made *report) error {
	appended, err := loop(ctx, agent, given, made)
	if err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, given.patience)
	defer cancel()
	if err := agent.Settle(patient); err != nil {
		return err
	}
	made.Folds, made.Replayed, made.Reloads = agent.Folds(), agent.Replayed(), agent.Reloads()
	made.Revision = agent.Replica().Revision
	if given.dump != "" {
		if err := dump(given.dump, appended, agent.Replica().Rows); err != nil {
			return err
		}
	}
	return judge(ctx, agent, made)
}

// loop makes the model calls, two a task: one that calls a tool, one that answers. It returns what it appended.
func loop(ctx context.Context, agent *host.Host, given flags, made *report) ([]*pb.Row, error) {
	fresh := []*pb.Row{scripted.System()}
	var appended []*pb.Row
	task := 0
	for step := range given.steps {
		if step%2 == 0 {
			fresh = append(fresh, scripted.Task(task))
			task++
		}
		appended = append(appended, fresh...)
		request, err := agent.Prepare(ctx, fmt.Sprintf("task-%d", task-1), fresh...)
		if err != nil {
			return nil, err
		}
		made.Requests++
		where := "prepared"
		if request.Prepared == nil {
			made.Offline++
			where = fmt.Sprintf("offline, %d queued", agent.Queued())
		} else if request.Prepared.GetFold() != nil {
			where = "folded"
		}
		fmt.Fprintf(os.Stderr, "step %d %s\n", step+1, where)
		said, usage := scripted.Answer(request.Rows)
		time.Sleep(given.pace)
		agent.Answer(said, usage)
		appended, fresh = append(appended, said), scripted.Run(said)
		if step+1 == given.steps*3/4 && request.Prepared != nil {
			if err := compact(ctx, agent, made); err != nil {
				return nil, err
			}
		}
	}
	return appended, nil
}

// compact asks for a fold. That there is nothing to fold is an answer, told by its reason.
func compact(ctx context.Context, agent *host.Host, made *report) error {
	record, err := agent.Compact(ctx, "Keep every release key.")
	switch {
	case err == nil:
		made.Compacted = record.GetFoldId()
	case host.Info(err).GetReason() == "NOTHING_TO_FOLD":
		made.Compacted = "NOTHING_TO_FOLD"
	case host.Away(err):
		made.Compacted = "AWAY"
	default:
		return err
	}
	return nil
}

// judge asks memory for a fact of the first task, which folded long ago, and compares the host's list with the
// sidecar's.
func judge(ctx context.Context, agent *host.Host, made *report) error {
	query, key := scripted.Question(0)
	made.Search.Query = query
	hits, err := agent.Search(ctx, query)
	if err != nil {
		return err
	}
	for _, hit := range hits {
		if strings.Contains(hit.GetText(), key) {
			made.Search.Found, made.Search.Offset = true, hit.GetOffset()
			break
		}
	}
	verified, err := agent.Verify(ctx)
	if err != nil {
		return err
	}
	made.Verified, made.RowsTotal, made.RowsActive = verified.GetOk(), verified.GetRowsTotal(), verified.GetRowsActive()
	stored, err := agent.List(ctx, made.Revision)
	if err != nil {
		return err
	}
	made.ReplicaEqual = equal(agent.Replica().Rows, stored)
	return nil
}

// equal compares what hosts author; the sidecar's own notes on a row do not travel with splices of offsets.
func equal(held, stored []*pb.Row) bool {
	if len(held) != len(stored) {
		return false
	}
	for i := range held {
		if !proto.Equal(authored(held[i]), authored(stored[i])) {
			return false
		}
	}
	return true
}

func authored(row *pb.Row) *pb.Row {
	row = proto.CloneOf(row)
	row.Archived = false
	if result := row.GetToolResult(); result != nil {
		result.CallOffset, result.UsageMark, result.Late = 0, "", false
	}
	return row
}

func dump(path string, appended, held []*pb.Row) error {
	var all struct {
		Appended []json.RawMessage `json:"appended"`
		Replica  []json.RawMessage `json:"replica"`
	}
	for _, part := range []struct {
		rows []*pb.Row
		to   *[]json.RawMessage
	}{{appended, &all.Appended}, {held, &all.Replica}} {
		for _, row := range part.rows {
			line, err := protojson.Marshal(row)
			if err != nil {
				return err
			}
			*part.to = append(*part.to, line)
		}
	}
	data, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}
