package host

import (
	pb "foldline.dev/examples/go/gen/foldline/v1"
)

// step is one model call on its way to the sidecar: the answer to the call before it and the rows that came since.
// It stays in the queue until the sidecar acknowledged it, and goes out again under the same request id, so that it
// is appended exactly once whether or not an earlier try got through (W2, W10).
type step struct {
	requestID string
	runID     string
	answer    *answer
	rows      []*pb.Row
	// request is what was sent first. A repeat must be the same message, so it is never built anew.
	request *pb.PrepareRequestRequest
	// late says that the agent went on without the sidecar's answer.
	late bool
}

// sent are the step's rows in the order in which the sidecar appends them.
func (s *step) sent() []*pb.Row {
	if s.answer == nil {
		return s.rows
	}
	return append([]*pb.Row{s.answer.row}, s.rows...)
}

// answer is what the model said, until the next step hands it in.
type answer struct {
	row    *pb.Row
	usage  *pb.Usage
	finish pb.RunOutcome
}

// outcome names the prepared request that the answer belongs to; its id is known once that was acknowledged.
func (a *answer) outcome(prepareID string) *pb.Outcome {
	if a == nil {
		return nil
	}
	said := &pb.Answer{Content: &pb.Answer_Input{Input: input([]*pb.Row{a.row})}}
	if a.usage != nil {
		said.UsageKind = &pb.Answer_Usage{Usage: a.usage}
	}
	return &pb.Outcome{PrepareId: prepareID, Kind: &pb.Outcome_Answer{Answer: said}, Finish: a.finish}
}

func input(rows []*pb.Row) *pb.RowInput {
	return &pb.RowInput{Kind: &pb.RowInput_Rows{Rows: &pb.RowList{Rows: rows}}}
}
