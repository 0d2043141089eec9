// Package scripted stands for a provider and its tools, so that the example runs without a network. The agent reads
// one module after the other and notes who owns it.
package scripted

import (
	"fmt"
	"hash/fnv"
	"strings"

	"google.golang.org/protobuf/proto"

	"foldline.dev/examples/go/internal/host"

	pb "foldline.dev/examples/go/gen/foldline/v1"
)

// Model names what answers.
var Model = &pb.ModelRef{Provider: "openai", Model: "scripted"}

// System is the agent's standing instruction.
func System() *pb.Row {
	text := "You take stock of a code base, one module at a time. Note the owner and the release key of each."
	return &pb.Row{Body: &pb.Row_System{System: &pb.SystemRow{Content: []*pb.ContentBlock{host.Text(text)}}}}
}

// Task is what the user asks in turn n.
func Task(n int) *pb.Row {
	text := fmt.Sprintf("Task %d: read %s and tell me who owns it.", n, module(n))
	return &pb.Row{Body: &pb.Row_User{User: &pb.UserRow{Content: []*pb.ContentBlock{host.Text(text)}}}}
}

// Answer is the model's: a call to read the module that the last user row names, or, after its result, the answer.
func Answer(rows []*pb.Row) (*pb.Row, *pb.Usage) {
	last := rows[len(rows)-1]
	row := &pb.AssistantRow{Model: Model, StopReason: pb.StopReason_STOP_REASON_END_TURN}
	if result := last.GetToolResult(); result != nil {
		found := result.GetContent()[0].GetText().GetText()
		row.Content = []*pb.ContentBlock{host.Text("Noted. " + strings.SplitN(found, "\n", 2)[0])}
	} else {
		var n int
		if _, err := fmt.Sscanf(last.GetUser().GetContent()[0].GetText().GetText(), "Task %d:", &n); err != nil {
			n = -1
		}
		call := &pb.ToolCallBlock{
			CallId: fmt.Sprintf("call-%d", n), Name: "read_file",
			ArgumentsJson: fmt.Sprintf(`{"path": %q}`, module(n)),
		}
		row.Content = []*pb.ContentBlock{{Kind: &pb.ContentBlock_ToolCall{ToolCall: call}}}
		row.StopReason = pb.StopReason_STOP_REASON_TOOL_CALLS
	}
	return &pb.Row{Body: &pb.Row_Assistant{Assistant: row}}, usage(rows)
}

// Run executes the calls of an answer.
func Run(answer *pb.Row) []*pb.Row {
	var results []*pb.Row
	for _, block := range answer.GetAssistant().GetContent() {
		call := block.GetToolCall()
		if call == nil {
			continue
		}
		var n int
		if _, err := fmt.Sscanf(call.GetCallId(), "call-%d", &n); err != nil {
			n = -1
		}
		results = append(results, &pb.Row{Body: &pb.Row_ToolResult{ToolResult: &pb.ToolResultRow{
			CallId: call.GetCallId(), Content: []*pb.ContentBlock{host.Text(source(n))},
		}}})
	}
	return results
}

// Question asks for a fact of turn n; an answer holds the key.
func Question(n int) (query, key string) {
	return "release key of " + module(n), Key(n)
}

// Key is the release key of the module of turn n.
func Key(n int) string {
	sum := fnv.New32a()
	sum.Write([]byte(module(n)))
	return fmt.Sprintf("K-%08x", sum.Sum32())
}

func module(n int) string { return fmt.Sprintf("billing/module-%02d.txt", n) }

func source(n int) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s is owned by team %c; the release key of %s is %s.\n", module(n), 'A'+n%26, module(n), Key(n))
	for line := range 24 {
		fmt.Fprintf(&text, "%03d  step %d of invoice %d: check ledger %04d, retry %d times\n",
			line, line*7%11, n*31+line, n*97+line*13, line%5)
	}
	return text.String()
}

// usage counts as a provider would, roughly: four bytes a token.
func usage(rows []*pb.Row) *pb.Usage {
	tokens := 0
	for _, row := range rows {
		tokens += proto.Size(row)/4 + 1
	}
	return &pb.Usage{InputTokens: proto.Int64(int64(tokens)), OutputTokens: proto.Int64(40)}
}
