// Package host keeps an agent's conversation in a Foldline sidecar: one PrepareRequest per model call carries the
// answer before it and what came since, and answers with the list to send. When the sidecar is away the agent goes on
// with the list it holds.
package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	pb "foldline.dev/examples/go/gen/foldline/v1"
)

const maxMessage = 16 << 20 // W5: the sidecar's own default.

// Options of a session.
type Options struct {
	// Target is host:port, or unix:///path.
	Target    string
	SessionID string
	Model     *pb.ModelRef
	Policy    *pb.Policy
	// Deadline of each call. A sidecar that takes longer counts as away.
	Deadline time.Duration
}

// Host holds one session. It is not safe for concurrent use: an agent makes one model call at a time.
type Host struct {
	options    Options
	connection *grpc.ClientConn
	sessions   pb.SessionServiceClient
	compaction pb.CompactionServiceClient
	memory     pb.MemoryServiceClient

	nonce    string
	requests int
	created  bool
	replica  Replica
	queue    []*step
	// answer waits for the next step. unprepared says that the sidecar did not prepare the request it answers.
	answer     *answer
	unprepared bool
	runID      string
	prepareID  string
	last       *pb.RecordAnswerRequest
	replayed   int
	folds      int
	reloads    int
}

// New makes a host. It does not wait for the sidecar.
func New(options Options) (*Host, error) {
	nonce := make([]byte, 4)
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	// The default back-off grows to two minutes; a sidecar on the same machine is back sooner.
	retry := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
	connection, err := grpc.NewClient(
		options.Target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 2 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	)
	if err != nil {
		return nil, err
	}
	return &Host{
		options:    options,
		connection: connection,
		sessions:   pb.NewSessionServiceClient(connection),
		compaction: pb.NewCompactionServiceClient(connection),
		memory:     pb.NewMemoryServiceClient(connection),
		nonce:      hex.EncodeToString(nonce),
	}, nil
}

// Close gives the connection back.
func (h *Host) Close() error { return h.connection.Close() }

// Compact folds now. The list that it leaves comes with the next Prepare.
func (h *Host) Compact(ctx context.Context, instructions string) (*pb.CompactionRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, h.options.Deadline)
	defer cancel()
	stream, err := h.compaction.CompactSession(ctx, &pb.CompactSessionRequest{
		SessionId: h.options.SessionID, RequestId: h.requestID("compact"), Instructions: instructions,
	})
	if err != nil {
		return nil, err
	}
	var record *pb.CompactionRecord
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return record, nil
		}
		if err != nil {
			return nil, err
		}
		if message.GetRecord() != nil {
			record = message.GetRecord()
		}
	}
}

// Search asks memory for what was folded away.
func (h *Host) Search(ctx context.Context, query string) ([]*pb.MemoryHit, error) {
	ctx, cancel := context.WithTimeout(ctx, h.options.Deadline)
	defer cancel()
	found, err := h.memory.SearchMemory(ctx, &pb.SearchMemoryRequest{SessionId: h.options.SessionID, Query: query})
	return found.GetHits(), err
}

// Verify has the sidecar prove that nothing was lost.
func (h *Host) Verify(ctx context.Context) (*pb.VerifySessionResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, h.options.Deadline)
	defer cancel()
	return h.sessions.VerifySession(ctx, &pb.VerifySessionRequest{SessionId: h.options.SessionID})
}

// List reads the active transcript of a revision.
func (h *Host) List(ctx context.Context, revision uint64) ([]*pb.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, h.options.Deadline)
	defer cancel()
	request := &pb.ListRowsRequest{
		SessionId: h.options.SessionID, View: pb.RowView_ROW_VIEW_ACTIVE, Revision: &revision, PageSize: 1000,
	}
	var rows []*pb.Row
	for {
		page, err := h.sessions.ListRows(ctx, request)
		if err != nil {
			return nil, err
		}
		rows = append(rows, page.GetRows()...)
		if page.GetNextPageToken() == "" {
			return rows, nil
		}
		request.PageToken = page.GetNextPageToken()
	}
}

// requestID is never given twice, also not by another process that plays the same session.
func (h *Host) requestID(what string) string {
	h.requests++
	return fmt.Sprintf("%s-%s-%d", h.nonce, what, h.requests)
}
