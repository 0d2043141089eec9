package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	pb "foldline.dev/examples/go/gen/foldline/v1"
)

// summary tells what was asked, called and said last, in at most one character a token of the budget. It is made from
// the rows alone, and needs no model: put your own here.
func summary(task *pb.CuratorTask) string {
	var asked []string
	last, failed, calls := "", 0, map[string]int{}
	for _, row := range task.Rows {
		if row.GetUser() != nil {
			asked = append(asked, line(row.GetUser().Content))
		}
		if text := line(row.GetAssistant().GetContent()); text != "" {
			last = text
		}
		for _, block := range row.GetAssistant().GetContent() {
			if call := block.GetToolCall(); call != nil {
				calls[call.Name]++
			}
		}
		if row.GetToolResult().GetIsError() {
			failed++
		}
	}
	lines := []string{"Work so far, as its host tells it."}
	if task.EarlierSummary != nil {
		lines = append(lines, "Before: "+cut(task.EarlierSummary.Text, int(task.BudgetTokens)/3))
	}
	if len(calls) > 0 {
		var made []string
		for _, name := range slices.Sorted(maps.Keys(calls)) {
			made = append(made, fmt.Sprintf("%s x%d", name, calls[name]))
		}
		lines = append(lines, fmt.Sprintf("Called: %s; %d failed.", strings.Join(made, ", "), failed))
	}
	if last != "" {
		lines = append(lines, "Said last: "+last)
	}
	for _, text := range slices.Backward(asked) {
		if text != "" {
			lines = append(lines, "Asked: "+text)
		}
	}
	return cut(strings.Join(lines, "\n"), int(task.BudgetTokens))
}

func line(blocks []*pb.ContentBlock) string {
	var texts []string
	for _, block := range blocks {
		if text := block.GetText(); text != nil {
			texts = append(texts, text.Text)
		}
	}
	return cut(strings.Join(strings.Fields(strings.Join(texts, " ")), " "), 160)
}

func cut(text string, most int) string {
	runes := []rune(text)
	return strings.TrimRight(string(runes[:min(most, len(runes))]), " \n")
}
