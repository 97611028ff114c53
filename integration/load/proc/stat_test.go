package proc

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const tail = " S 7 1 1 0 -1 4194560 100 0 0 0 150 25 900 900 20 0 1 0 5 1000 10"

func TestStatLineGivesParentAndCPU(t *testing.T) {
	f := func(line string) {
		t.Helper()
		got, err := parseStat([]byte(line))
		require.NoError(t, err)
		assert.Equal(t, stat{ppid: 7, cpu: 1750 * time.Millisecond}, got)
	}
	f("42 (nginx)" + tail)
	f("42 (nginx: worker process)" + tail)
	f("42 (odd) S 1 (name)" + tail)
	f("42 ()" + tail)
}

func TestMalformedStatLineIsAnError(t *testing.T) {
	for _, line := range []string{"", "42 nginx S 7", "42 (nginx) S 7 1 1", "42 (nginx) S x 1 1 0 -1 4194560 100 0 0 0 150 25"} {
		_, err := parseStat([]byte(line))
		assert.Error(t, err, line)
	}
}

func TestStatusFieldIsReadInBytes(t *testing.T) {
	status := "Name:\tVmRSS: 1 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n"
	f := func(name string, want int64) {
		t.Helper()
		got, err := parseKB([]byte(status), name)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	f("VmHWM", 2<<20)
	f("VmRSS", 1<<20)
	f("VmSwap", 0)
	_, err := parseKB([]byte("VmRSS: much kB\n"), "VmRSS")
	assert.Error(t, err)
}

func TestCPUBetweenReadingsCountsTheNewbornWhole(t *testing.T) {
	earlier := CPU{1: time.Second, 2: time.Second}
	later := CPU{1: 3 * time.Second, 3: 5 * time.Second} // 2 has died, 3 is new
	assert.Equal(t, 7*time.Second, later.Since(earlier))
}

func TestThisProcessIsMeasured(t *testing.T) {
	cpu, err := ReadCPU(os.Getpid())
	require.NoError(t, err)
	assert.Contains(t, cpu, os.Getpid())
	m, err := ReadMemory(os.Getpid())
	require.NoError(t, err)
	assert.Positive(t, m.RSS)
	assert.GreaterOrEqual(t, m.Peak, m.RSS/2)
}

func TestStopEndsAProcessAndItsChildren(t *testing.T) {
	// The shell ignores SIGTERM for itself and waits for a child that inherits that.
	c, err := Start("shell", nil, nil, "/bin/sh", "-c", "trap '' TERM; sleep 60; exit 0")
	require.NoError(t, err)
	var tree []int
	require.Eventually(t, func() bool {
		tree, err = Tree(c.Pid())
		return err == nil && len(tree) == 2
	}, 5*time.Second, 10*time.Millisecond)
	c.Stop()
	assert.Eventually(t, func() bool {
		m, err := ReadMemory(tree[1])
		return err == nil && m.RSS == 0 // gone, or a zombie that nobody has reaped yet
	}, 5*time.Second, 10*time.Millisecond)
}

func TestFreePortsDiffer(t *testing.T) {
	ports, err := FreePorts(3)
	require.NoError(t, err)
	assert.Len(t, map[int]bool{ports[0]: true, ports[1]: true, ports[2]: true}, 3)
}
