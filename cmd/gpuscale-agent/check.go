package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
)

const checkUsage = "usage: gpuscale-agent check [-o text|json] [--boot-file FILE]"

// check prints what an agent would find on this machine. It returns exitOK where it could serve and exitFailure where not.
func check(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	file := flags.String("boot-file", "", "file with the boot data, in place of GPUSCALE_BOOT")
	format := flags.String("o", "text", "text or json")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		_, _ = fmt.Fprintln(stdout, checkUsage) // There is nowhere else to say it.
		return exitOK
	}
	if err != nil || flags.NArg() > 0 || *format != "text" && *format != "json" {
		_, _ = fmt.Fprintln(stderr, checkUsage) // There is nowhere else to say it.
		return exitUsage
	}
	config := agent.CheckConfig{Version: version, Getenv: getenv, Metadata: getenv(agentapi.EnvMetadata)}
	var boot agentapi.Boot
	if *file != "" || getenv(agentapi.EnvBoot) != "" {
		if boot, config.BootError = bootData(*file, getenv); config.BootError == nil {
			config.Boot = &boot
		}
	}
	config.Listen = address(boot, getenv)
	if text := getenv(agentapi.EnvEngineCommand); text != "" {
		if words, err := agent.ParseCommand(text); err == nil && len(words) > 0 {
			config.Command = words
		}
	}
	report := agent.Check(ctx, config)
	if err := printReport(stdout, report, *format); err != nil {
		_, _ = fmt.Fprintln(stderr, "gpuscale-agent:", err) // As above.
		return exitFailure
	}
	if !report.Serves {
		return exitFailure
	}
	return exitOK
}

func printReport(w io.Writer, r agent.Report, format string) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	name := 0
	for _, f := range r.Findings {
		name = max(name, len(f.Name))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "gpuscale-agent %s on %s\n\n", r.Version, r.Platform)
	var bad []string
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", f.Verdict, name, f.Name, f.Detail)
		if f.Advice != "" {
			fmt.Fprintf(&b, "%-4s  %-*s  > %s\n", "", name, "", f.Advice)
		}
		if f.Verdict == agent.Bad {
			bad = append(bad, f.Name)
		}
	}
	if r.Serves {
		b.WriteString("\nThis machine could serve.\n")
	} else {
		fmt.Fprintf(&b, "\nThis machine could not serve: see %s.\n", strings.Join(bad, ", "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
