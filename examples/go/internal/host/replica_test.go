package host

import (
	"slices"
	"testing"

	pb "foldline.dev/examples/go/gen/foldline/v1"
)

func row(offset uint64, text string) *pb.Row {
	return &pb.Row{Offset: offset, Body: &pb.Row_User{User: &pb.UserRow{Content: []*pb.ContentBlock{Text(text)}}}}
}

func list(offsets ...uint64) []*pb.Row {
	rows := make([]*pb.Row, len(offsets))
	for i, offset := range offsets {
		rows[i] = row(offset, "held")
	}
	return rows
}

func own(position, deleted int32, offsets ...uint64) *pb.Splice {
	insert := &pb.Splice_Offsets{Offsets: &pb.OffsetList{Offsets: offsets}}
	return &pb.Splice{Position: position, DeleteCount: deleted, Insert: insert}
}

func foreign(position, deleted int32, rows ...*pb.Row) *pb.Splice {
	return &pb.Splice{Position: position, DeleteCount: deleted, Insert: &pb.Splice_Rows{Rows: &pb.RowList{Rows: rows}}}
}

func edits(first, last uint64, splices ...*pb.Splice) *pb.PrepareRequestResponse {
	return &pb.PrepareRequestResponse{
		Revision: 9, FirstOffset: first, LastOffset: last,
		Content: &pb.PrepareRequestResponse_Splices{Splices: &pb.SpliceList{Splices: splices}},
	}
}

func TestApply(t *testing.T) {
	whole := &pb.PrepareRequestResponse{
		Revision: 9, Content: &pb.PrepareRequestResponse_Rows{Rows: &pb.RowList{Rows: list(7, 5, 6)}},
	}
	for _, c := range []struct {
		name   string
		held   []*pb.Row
		answer *pb.PrepareRequestResponse
		sent   []*pb.Row
		want   []uint64 // nil: refused
	}{
		{"nothing changed", list(1, 2), edits(0, 0), nil, []uint64{1, 2}},
		{"own rows go to the end", list(1), edits(2, 3, own(1, 0, 2, 3)), list(0, 0), []uint64{1, 2, 3}},
		{
			"a fold behind own rows, each splice on the list that the one before left",
			list(1, 2, 3, 4), edits(5, 5, own(4, 0, 5), foreign(1, 2, row(6, "summary"))), list(0),
			[]uint64{1, 6, 4, 5},
		},
		{"a restore brings back rows that the host holds", list(1, 2, 3), edits(0, 0, own(0, 3, 3, 1)), nil, []uint64{3, 1}},
		{"the whole list of a host that fell behind", list(1), whole, list(0), []uint64{7, 5, 6}},
		{"a row that the host never held", list(1), edits(0, 0, own(1, 0, 8)), nil, nil},
		{"a splice behind the end", list(1), edits(0, 0, foreign(1, 1)), nil, nil},
		{"fewer rows appended than sent", list(1), edits(2, 2, own(1, 0, 2)), list(0, 0), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			replica := Replica{Revision: 8, Rows: c.held}
			err := replica.Apply(c.answer, c.sent)
			revision, want := uint64(9), c.want
			if want == nil {
				revision, want = 8, offsets(c.held)
			}
			if (err != nil) != (c.want == nil) || replica.Revision != revision || !slices.Equal(offsets(replica.Rows), want) {
				t.Errorf("revision %d, rows %v, error %v; want revision %d, rows %v",
					replica.Revision, offsets(replica.Rows), err, revision, want)
			}
		})
	}
}

func offsets(rows []*pb.Row) []uint64 {
	found := make([]uint64, len(rows))
	for i, row := range rows {
		found[i] = row.GetOffset()
	}
	return found
}
