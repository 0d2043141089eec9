package host

import (
	"fmt"
	"slices"

	pb "foldline.dev/examples/go/gen/foldline/v1"
)

// Replica is the list that the next request to the model is built from. The sidecar owns it; the host keeps a copy
// by splices (W1), so that each answer carries what changed and nothing else.
type Replica struct {
	// Revision the list is of; 0 is the empty list of a new session.
	Revision uint64
	// Rows in list order, which is not offset order: a summary has a new offset and an old place.
	Rows []*pb.Row
}

// Apply brings the list to the answer's revision. Sent are the rows that the host handed in with the call, in its
// order: their bodies do not travel back, only their offsets do. On an error the replica is as it was.
func (r *Replica) Apply(answer *pb.PrepareRequestResponse, sent []*pb.Row) error {
	if whole := answer.GetRows(); whole != nil {
		r.Rows, r.Revision = whole.GetRows(), answer.GetRevision()
		return nil
	}
	held, err := r.held(answer, sent)
	if err != nil {
		return err
	}
	rows := slices.Clone(r.Rows)
	for _, splice := range answer.GetSplices().GetSplices() {
		insert := splice.GetRows().GetRows()
		for _, offset := range splice.GetOffsets().GetOffsets() {
			row, ok := held[offset]
			if !ok {
				return fmt.Errorf("revision %d: the host never held row %d", answer.GetRevision(), offset)
			}
			insert = append(insert, row)
		}
		from, to := int(splice.GetPosition()), int(splice.GetPosition()+splice.GetDeleteCount())
		if from < 0 || to < from || to > len(rows) {
			return fmt.Errorf("revision %d: splice [%d, %d) of a list of %d", answer.GetRevision(), from, to, len(rows))
		}
		rows = slices.Replace(rows, from, to, insert...)
	}
	r.Rows, r.Revision = rows, answer.GetRevision()
	return nil
}

// held maps offsets to the rows that the host has: its list, and what it just sent.
func (r *Replica) held(answer *pb.PrepareRequestResponse, sent []*pb.Row) (map[uint64]*pb.Row, error) {
	held := make(map[uint64]*pb.Row, len(r.Rows)+len(sent))
	for _, row := range r.Rows {
		held[row.GetOffset()] = row
	}
	first, last := answer.GetFirstOffset(), answer.GetLastOffset()
	if len(sent) == 0 {
		return held, nil
	}
	if first == 0 || last-first+1 != uint64(len(sent)) {
		return nil, fmt.Errorf("%d rows were sent, and rows %d to %d appended", len(sent), first, last)
	}
	for i, row := range sent {
		row.Offset = first + uint64(i)
		held[row.Offset] = row
	}
	return held, nil
}
