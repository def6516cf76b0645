package task

import "testing"

// TestChildrenThatAreGoneMakeRoom submits without end below one parent.
func TestChildrenThatAreGoneMakeRoom(t *testing.T) {
	var list []*item
	var live []*item
	for range 100_000 {
		it := &item{}
		list = addChild(list, it)
		if live = append(live, it); len(live) > 10 {
			live[0].gone = true
			live = live[1:]
		}
	}
	if cap(list) > 64 {
		t.Errorf("%d places for 10 children", cap(list))
	}
	for i, it := range live {
		if list[len(list)-len(live)+i] != it {
			t.Fatal("a child that is there is missing, or out of order")
		}
	}
}
