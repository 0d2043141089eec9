package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "foldline.dev/examples/go/gen/foldline/v1"
)

// ErrTooLarge says that a request cannot fit, by an exact count (L3). The run stays open.
var ErrTooLarge = errors.New("the request does not fit the model's window")

// Request is what to send to the model.
type Request struct {
	// Rows to send, tool results shortened where the sidecar says so.
	Rows []*pb.Row
	// Prepared is the sidecar's answer; nil while it is away, and Rows are then the host's own list, unfolded.
	Prepared *pb.PrepareRequestResponse
}

// Prepare hands in the last answer and the new rows of a run, and says what to send. A run that is not the last one
// closes that as completed. A sidecar that is away is no error.
func (h *Host) Prepare(ctx context.Context, runID string, rows ...*pb.Row) (*Request, error) {
	if h.answer != nil && runID != h.runID {
		h.answer.finish = pb.RunOutcome_RUN_OUTCOME_COMPLETED
	}
	h.stamp(runID, rows)
	h.queue = append(h.queue, &step{
		requestID: h.requestID("prepare"), runID: runID, answer: h.answer, rows: rows,
	})
	h.answer, h.runID = nil, runID
	prepared, err := h.flush(ctx)
	h.unprepared = err != nil
	if Away(err) && ctx.Err() == nil {
		h.queue[len(h.queue)-1].late = true
		return &Request{Rows: h.held()}, nil
	}
	if err != nil {
		return nil, err
	}
	request := &Request{Rows: shortened(h.replica.Rows, prepared.GetBounded()), Prepared: prepared}
	if prepared.GetAction() == pb.Action_ACTION_TOO_LARGE {
		sent := prepared.GetPressureSent()
		return request, fmt.Errorf("%w: %d of %d tokens, %d bytes", ErrTooLarge, sent.GetForecastTokens(),
			sent.GetInputBudgetTokens(), sent.GetBodyBytes())
	}
	return request, nil
}

// Answer takes what the model said. It travels with the next Prepare, or with Settle.
func (h *Host) Answer(row *pb.Row, usage *pb.Usage) {
	h.stamp(h.runID, []*pb.Row{row})
	if h.unprepared {
		// The provider counted a list that the sidecar did not prepare: no reading of the one it has.
		usage = nil
	}
	h.answer = &answer{row: row, usage: usage}
}

// Settle hands in the last answer, closes its run, and waits until the sidecar has acknowledged everything.
func (h *Host) Settle(ctx context.Context) error {
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		err := h.settle(ctx)
		if !Away(err) {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%d calls are not acknowledged: %w", len(h.queue), err)
		}
	}
}

func (h *Host) settle(ctx context.Context) error {
	if _, err := h.flush(ctx, grpc.WaitForReady(true)); err != nil {
		return err
	}
	if h.answer != nil {
		h.answer.finish = pb.RunOutcome_RUN_OUTCOME_COMPLETED
		h.last = &pb.RecordAnswerRequest{
			SessionId: h.options.SessionID, RunId: h.runID, RequestId: h.requestID("answer"),
			Outcome: h.answer.outcome(h.prepareID),
		}
		h.answer = nil
	}
	if h.last == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, h.options.Deadline)
	defer cancel()
	if _, err := h.compaction.RecordAnswer(ctx, h.last, grpc.WaitForReady(true)); err != nil {
		return err
	}
	h.last = nil
	return nil
}

// flush sends what is queued, oldest first, and returns the answer to the newest. A step that fails stays queued with
// those behind it.
func (h *Host) flush(ctx context.Context, options ...grpc.CallOption) (*pb.PrepareRequestResponse, error) {
	if err := h.create(ctx, options...); err != nil {
		return nil, err
	}
	var newest *pb.PrepareRequestResponse
	for len(h.queue) > 0 {
		next := h.queue[0]
		prepared, err := h.send(ctx, next, options...)
		if err != nil {
			return nil, err
		}
		if next.late {
			h.replayed++
		}
		if prepared.GetFold() != nil {
			h.folds++
		}
		h.prepareID, h.queue, newest = prepared.GetPrepareId(), h.queue[1:], prepared
	}
	return newest, nil
}

func (h *Host) send(ctx context.Context, s *step, options ...grpc.CallOption) (*pb.PrepareRequestResponse, error) {
	if s.request == nil {
		s.request = &pb.PrepareRequestRequest{
			SessionId:      h.options.SessionID,
			RunId:          s.runID,
			RequestId:      s.requestID,
			PreviousAnswer: s.answer.outcome(h.prepareID),
			Shape:          &pb.RequestShape{Model: h.options.Model},
			Reply:          pb.ReplyMode_REPLY_MODE_EDITS,
			KnownRevision:  &h.replica.Revision,
		}
		if len(s.rows) > 0 {
			s.request.Append = input(s.rows)
		}
		s.request = proto.CloneOf(s.request) // Rows get their offsets later; a repeat must not carry them.
	}
	call, cancel := context.WithTimeout(ctx, h.options.Deadline)
	defer cancel()
	prepared, err := h.compaction.PrepareRequest(call, s.request, options...)
	if err != nil {
		return nil, err
	}
	if err := h.replica.Apply(prepared, s.sent()); err != nil {
		return prepared, h.reload(ctx, prepared.GetRevision(), err)
	}
	return prepared, nil
}

// reload reads the whole list where splices did not lead to it.
func (h *Host) reload(ctx context.Context, revision uint64, cause error) error {
	rows, err := h.List(ctx, revision)
	if err != nil {
		return errors.Join(cause, err)
	}
	h.replica = Replica{Revision: revision, Rows: rows}
	h.reloads++
	return nil
}

func (h *Host) create(ctx context.Context, options ...grpc.CallOption) error {
	if h.created {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, h.options.Deadline)
	defer cancel()
	_, err := h.sessions.CreateSession(ctx, &pb.CreateSessionRequest{
		SessionId: h.options.SessionID, Model: h.options.Model, Policy: h.options.Policy,
		RequestId: h.nonce + "-create",
	}, options...)
	h.created = err == nil
	return err
}

// held is the list as the host knows it: the replica, and what the sidecar has not acknowledged (W10).
func (h *Host) held() []*pb.Row {
	rows := append([]*pb.Row(nil), h.replica.Rows...)
	for _, queued := range h.queue {
		rows = append(rows, queued.sent()...)
	}
	return rows
}

// Queued counts the steps that the sidecar has not acknowledged.
func (h *Host) Queued() int { return len(h.queue) }

// Replayed counts the steps that the sidecar acknowledged after their model call was made.
func (h *Host) Replayed() int { return h.replayed }

// Folds counts the folds that acknowledged steps came back with.
func (h *Host) Folds() int { return h.folds }

// Reloads counts the times that splices did not lead to the list, which was then read whole.
func (h *Host) Reloads() int { return h.reloads }

// Replica is the list as of the last acknowledged Prepare.
func (h *Host) Replica() Replica { return h.replica }

// stamp sets what the sidecar would otherwise choose, so that the host's own copy of a row is the stored one.
func (h *Host) stamp(runID string, rows []*pb.Row) {
	for _, row := range rows {
		row.RunId = runID
		if row.CreateTime == nil {
			row.CreateTime = timestamppb.New(time.Now().Truncate(time.Microsecond))
		}
	}
}

// shortened puts the texts in place that this one request carries in place of whole tool results (B2).
func shortened(rows []*pb.Row, bounded []*pb.BoundedResult) []*pb.Row {
	if len(bounded) == 0 {
		return rows
	}
	texts := make(map[uint64]string, len(bounded))
	for _, result := range bounded {
		texts[result.GetOffset()] = result.GetText()
	}
	sent := make([]*pb.Row, len(rows))
	for i, row := range rows {
		sent[i] = row
		if text, ok := texts[row.GetOffset()]; ok && row.GetToolResult() != nil {
			sent[i] = proto.CloneOf(row)
			sent[i].GetToolResult().Content = []*pb.ContentBlock{Text(text)}
		}
	}
	return sent
}

// Text is a block of plain text.
func Text(text string) *pb.ContentBlock {
	return &pb.ContentBlock{Kind: &pb.ContentBlock_Text{Text: &pb.TextBlock{Text: text}}}
}
