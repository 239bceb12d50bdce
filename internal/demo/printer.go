package demo

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Columns of the timeline.
const (
	timeWidth   = 7
	nameWidth   = 24
	sourceWidth = 11
	minText     = 30
)

// indent is where the text of a line begins.
const indent = timeWidth + 3 + nameWidth + 1 + sourceWidth + 1

// Printer writes the timeline: a time since Start, a mark, and aligned columns.
type Printer struct {
	Out io.Writer
	// Colour is for terminals only.
	Colour bool
	// Width of the terminal; texts that do not fit go on in the next line.
	Width int
	// Start is what times count from.
	Start time.Time

	// column is where the text that is being streamed has got to; 0 when none is.
	column int
}

// Colours of a terminal.
const (
	plain = ""
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
	cyan  = "36"
)

func (p *Printer) paint(colour, text string) string {
	if !p.Colour || colour == plain || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (p *Printer) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p.Out, format, args...) // Nobody is left to tell when the output is closed.
}

// Heading begins a part.
func (p *Printer) Heading(text string) { p.printf("\n%s\n", p.paint(bold, text)) }

// Pair writes a name and what it stands for.
func (p *Printer) Pair(name, value string) { p.printf("  %s %s\n", pad(name, 10), value) }

// Line writes what was seen, and when it was told: what an observer learns late is told late.
func (p *Printer) Line(at time.Time, l Line) {
	p.entry(at, p.paint(green, "✓"), l.Name, string(l.Source), l.Text)
}

// Failed writes what was not.
func (p *Printer) Failed(at time.Time, u *Unmet) {
	p.entry(at, p.paint(red, "✗"), u.Expectation.Name, string(u.Expectation.Source), "not seen: "+u.Why)
}

func (p *Printer) entry(at time.Time, mark, name, source, text string) {
	p.printf("%s %s %s %s %s\n", p.clock(at), mark, pad(name, nameWidth), p.paint(dim, pad(source, sourceWidth)),
		strings.Join(wrap(text, p.Width-indent), "\n"+strings.Repeat(" ", indent)))
}

// Command writes what a user would type.
func (p *Printer) Command(at time.Time, command string) {
	p.printf("%s %s\n", p.clock(at), p.paint(cyan, "$ "+command))
}

// Output writes what a command said.
func (p *Printer) Output(text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		p.printf("%s   %s\n", strings.Repeat(" ", timeWidth), p.paint(dim, strings.TrimRight(line, "\n")))
	}
}

// Stream writes a piece of an answer as it comes, in lines that fit.
func (p *Printer) Stream(piece string) {
	const margin = timeWidth + 3
	if p.column == 0 {
		p.printf("%s", strings.Repeat(" ", margin))
		p.column = margin
	}
	if n := utf8.RuneCountInString(piece); p.column+n > max(p.Width, margin+minText) && strings.HasPrefix(piece, " ") {
		p.printf("\n%s", strings.Repeat(" ", margin))
		p.column, piece = margin, piece[1:]
	}
	p.printf("%s", piece)
	p.column += utf8.RuneCountInString(piece)
}

// EndStream ends the lines of Stream.
func (p *Printer) EndStream() {
	if p.column > 0 {
		p.printf("\n")
	}
	p.column = 0
}

func (p *Printer) clock(at time.Time) string {
	return p.paint(dim, fmt.Sprintf("%*s", timeWidth, fmt.Sprintf("%.1fs", max(0, at.Sub(p.Start).Seconds()))))
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

// wrap breaks text at spaces into lines of at most width, and nowhere else: what is longer is an address to be copied.
func wrap(text string, width int) []string {
	width = max(width, minText)
	var lines []string
	line, length := "", 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		if length > 0 && length+1+n > width {
			lines = append(lines, line)
			line, length = "", 0
		}
		if length > 0 {
			line += " "
			length++
		}
		line += word
		length += n
	}
	return append(lines, line)
}
