import torch

from sage_snn.training.observer import Observer


def test_restored_rows_are_where_new_ones_will_be(ours, tmp_path):
    observer = Observer(tmp_path, ours(), (0.25,), torch.device("meta"))
    observer.load_state_dict([(0, [torch.zeros(9), torch.zeros(9)])])
    observer.record(1)
    assert {sums.device.type for _, row in observer._rows for sums in row} == {"meta"}
