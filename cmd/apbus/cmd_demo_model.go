package main

import (
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/loop"
)

// transcripts holds what a model once drafted about the calls of the demonstration.
//
//go:embed demo/transcript.json
var transcripts embed.FS

// demoModelCmd speaks the part of a model in the loop's protocol from a transcript:
// what it drafts is written down beforehand, and only what it cites is looked up in
// the evidence that it is shown. It is for demonstrations and tests, where a model's
// answers must be the same each time.
type demoModelCmd struct {
	Transcript string `local:"" placeholder:"FILE" help:"Transcript to answer from; that of the demonstration when absent."`
}

// transcript is the recorded part. Each draft is one of the protocol but for cites,
// texts that the evidence must contain; in its other texts $plan stands for the hash
// of the plan shown first, and a list "$lessons" for those of all lessons shown.
type transcript struct {
	Model  string           `json:"model"`
	Drafts []map[string]any `json:"drafts"`
	// Doubts are claims, known by a text in them, that it does not support, and Weak
	// those that it supports without being sure.
	Doubts []string `json:"doubts"`
	Weak   []string `json:"weak"`
}

// demoRequest is what is read of a request.
type demoRequest struct {
	Op       string              `json:"op"`
	Evidence []loop.EvidenceItem `json:"evidence"`
	Claims   []struct {
		ID    int    `json:"id"`
		Claim string `json:"claim"`
	} `json:"claims"`
	Findings []struct {
		ID      int    `json:"id"`
		Summary string `json:"summary"`
	} `json:"findings"`
}

// Run answers one request.
func (c *demoModelCmd) Run(s *session) error {
	raw, err := transcripts.ReadFile("demo/transcript.json")
	if c.Transcript != "" {
		raw, err = os.ReadFile(c.Transcript)
	}
	if err != nil {
		return settings.Usagef("--transcript: %w", err)
	}
	var script transcript
	if err := json.Unmarshal(raw, &script); err != nil {
		return settings.Usagef("--transcript: %w", err)
	}
	asked, err := io.ReadAll(io.LimitReader(s.stdin, loop.MaxRequestBytes+1))
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	var req demoRequest
	if err := json.Unmarshal(asked, &req); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	answer, err := json.Marshal(script.answer(&req))
	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	_, err = s.spec.Stdout.Write(append(answer, '\n'))
	return err
}

func (t *transcript) answer(req *demoRequest) map[string]any {
	results := []any{}
	switch req.Op {
	case loop.OpProbe:
		return map[string]any{"model": t.Model}
	case loop.OpDiscover:
		drafts := []any{}
		for _, d := range t.Drafts {
			if d := drafted(d, req.Evidence); d != nil {
				drafts = append(drafts, d)
			}
		}
		return map[string]any{"recommendations": drafts}
	case loop.OpGround:
		for _, c := range req.Claims {
			results = append(results, map[string]any{"id": c.ID, "supported": !mentions(c.Claim, t.Doubts), "reason": "as recorded"})
		}
	case loop.OpVerify:
		const sure, unsure = 0.86, 0.6
		for _, f := range req.Findings {
			confidence := sure
			if mentions(f.Summary, t.Weak) {
				confidence = unsure
			}
			results = append(results, map[string]any{"id": f.ID, "keep": true, "confidence": confidence, "reason": "as recorded"})
		}
	case loop.OpEnrich:
		return map[string]any{"notes": []any{}}
	}
	return map[string]any{"results": results}
}

func mentions(text string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}

// drafted is a draft with its citations, nil when the evidence has none for it.
func drafted(d map[string]any, evidence []loop.EvidenceItem) map[string]any {
	var cites, lessons []any
	plan := ""
	wanted := listOf(d["cites"])
	found := make([]int, len(wanted)) // how many records are cited for each text
	for _, e := range evidence {
		const most = 3
		for i, part := range wanted {
			if found[i] < most && strings.Contains(e.Text, text(part)) {
				cites = append(cites, e.ID)
				found[i]++
				break
			}
		}
		switch e.GrainType {
		case "lesson":
			lessons = append(lessons, e.Hash)
		case "plan":
			if plan == "" {
				plan = e.Hash
			}
		}
	}
	if len(cites) == 0 {
		return nil
	}
	out := map[string]any{"evidence": cites}
	for key, v := range d {
		if key != "cites" {
			out[key] = filledIn(v, plan, lessons)
		}
	}
	return out
}

func listOf(v any) []any { list, _ := v.([]any); return list }

func filledIn(v any, plan string, lessons []any) any {
	switch v := v.(type) {
	case string:
		if v == "$lessons" {
			return lessons
		}
		return strings.ReplaceAll(v, "$plan", plan)
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, item := range v {
			out[key] = filledIn(item, plan, lessons)
		}
		return out
	}
	return v
}
